#include "../launch.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/elias_fano.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

Status check(std::int64_t n, std::int64_t count) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    return count < 0 || count > n ? Status::kBadSize : Status::kOk;
}

std::int64_t tiles(const EliasFano& code) { return divided_up(code.high_words, kCodeTile); }

}  // namespace

std::size_t elias_fano_workspace_bytes(std::int64_t n, std::int64_t count) noexcept {
    return static_cast<std::size_t>(tiles(elias_fano(n, count)) + 1) * sizeof(std::int64_t);
}

Status elias_fano_encode(const std::int32_t* indices, std::int64_t count, std::int64_t n, std::uint32_t* words,
                         Fault fault, Stream stream) noexcept {
    if (const Status status = check(n, count); status != Status::kOk) return status;
    const EliasFano code = elias_fano(n, count);
    const std::int64_t all = code.high_words + code.low_words;
    launch(ClearWords{words, all}, divided_up(all, kCodeThreads), stream);
    launch(SetBits{indices, count, n, code, words, fault}, divided_up(count, kCodeThreads), stream);
    return launch_status();
}

Status elias_fano_decode(const std::uint32_t* words, std::int64_t count, std::int64_t n, std::int32_t* indices,
                         Workspace workspace, Fault fault, Stream stream) noexcept {
    if (const Status status = check(n, count); status != Status::kOk) return status;
    if (workspace.bytes < elias_fano_workspace_bytes(n, count)) return Status::kWorkspaceTooSmall;
    const EliasFano code = elias_fano(n, count);
    std::int64_t* const total = static_cast<std::int64_t*>(workspace.data);
    Count* const rows = reinterpret_cast<Count*>(total + 1);
    launch(CountOnes{words, code.high_words, rows}, tiles(code), stream);
    launch(PlaceCounts{rows, tiles(code), total}, 1, stream);
    launch(EmitIndices{words, count, n, code, rows, total, indices, fault}, tiles(code), stream);
    return launch_status();
}

}  // namespace hvd_compress::cuda
