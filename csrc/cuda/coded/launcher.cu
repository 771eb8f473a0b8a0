#include "../launch.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/dispatch.hpp"
#include "kernels.hpp"

namespace hvd_compress::cuda {
namespace {

// How chunks lie among others.
struct Placed {
    Count *streamed, *sizes;
    std::uint16_t* lengths;
    std::size_t bytes;

    Placed(void* workspace, std::int64_t chunks) {
        Parts parts(workspace);
        streamed = parts.take<Count>(chunks + 1);
        sizes = parts.take<Count>(chunks);
        lengths = parts.take<std::uint16_t>(chunks * kCodedStreams);
        bytes = parts.bytes();
    }
};

Status check(std::int64_t n, int most, Workspace workspace) {
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    if (!is_codable(most)) return Status::kBadSize;
    return workspace.bytes < coded_workspace_bytes(n, most) ? Status::kWorkspaceTooSmall : Status::kOk;
}

template <int most>
void encode(const std::uint8_t* codes, std::int64_t n, CodedTables by, std::uint8_t* coded, std::int64_t* bytes,
            Workspace workspace, Stream stream) {
    const std::int64_t chunks = coded_chunks(n, most);
    const Placed at(workspace.data, chunks);
    launch(MeasureChunks<most>{codes, n, by, coded, at.lengths, at.streamed, at.sizes}, chunks, stream);
    launch(PlaceChunks{at.streamed, at.sizes, chunks, bytes}, 1, stream);
    launch(WriteChunks<most>{codes, n, by, coded, at.lengths, at.streamed, at.sizes, chunks}, chunks, stream);
}

template <int most>
void decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, CodedTables by, std::uint8_t* codes,
            std::int32_t* bad, Workspace workspace, Stream stream) {
    const std::int64_t chunks = coded_chunks(n, most);
    const Placed at(workspace.data, chunks);
    launch(PlaceCoded<most>{coded, bytes, n, chunks, at.streamed, at.sizes, bad}, 1, stream);
    launch(DecodeChunks<most>{coded, n, by, at.streamed, at.sizes, chunks, codes, bad}, chunks, stream);
}

}  // namespace

std::size_t coded_workspace_bytes(std::int64_t n, int most) noexcept {
    return Placed(nullptr, coded_chunks(n, most)).bytes;
}

Status block_encode(const std::uint8_t* codes, std::int64_t n, int most, CodedTables by, std::uint8_t* coded,
                    std::int64_t* bytes, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, most, workspace); status != Status::kOk) return status;
    with_codable(most, [&](auto own) { encode<own.value>(codes, n, by, coded, bytes, workspace, stream); });
    return launch_status();
}

Status block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n, int most, CodedTables by,
                    std::uint8_t* codes, std::int32_t* bad, Workspace workspace, Stream stream) noexcept {
    if (const Status status = check(n, most, workspace); status != Status::kOk) return status;
    with_codable(most, [&](auto own) { decode<own.value>(coded, bytes, n, by, codes, bad, workspace, stream); });
    return launch_status();
}

}  // namespace hvd_compress::cuda
