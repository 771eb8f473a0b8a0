// Sums of several sorted lists: the output is taken block by block, so that it stays in a cache while all lists add.
#include <algorithm>
#include <atomic>

#include "../pool/pool.hpp"
#include "hvd_compress/dispatch.hpp"
#include "hvd_compress/scatter.hpp"

namespace hvd_compress::cpu {
namespace {

constexpr std::int64_t kBlock = 16384;      // elements of the output: 64 KiB of fp32
constexpr std::int64_t kBlocksPerPart = 8;  // that one thread takes in turn, so that it searches each list once
constexpr std::int64_t kListsAtOnce = 64;   // positions that are kept on the stack
constexpr std::int64_t kCheckedAtOnce = 65536;

// Whether indices[begin..end) ascend within 0..n-1, also from the one before.
bool ascends(const std::int32_t* indices, std::int64_t begin, std::int64_t end, std::int64_t n) {
    bool good = begin > 0 || indices[0] >= 0;
    for (std::int64_t j = std::max<std::int64_t>(begin, 1); j < end; ++j) good &= indices[j - 1] < indices[j];
    return good && indices[end - 1] < n;
}

std::int64_t first_that_does_not(const std::int32_t* indices, std::int64_t count, std::int64_t n) {
    for (std::int64_t j = 0; j < count; ++j) {
        if (indices[j] < 0 || indices[j] >= n || (j > 0 && indices[j - 1] >= indices[j])) return j;
    }
    return -1;
}

Status check(const SparseList* lists, std::int64_t list_count, std::int64_t n, std::int64_t* bad_list,
             std::int64_t* first_bad) {
    *bad_list = *first_bad = -1;
    if (list_count < 0) return Status::kBadSize;
    if (const Status status = check_numel(n); status != Status::kOk) return status;
    for (std::int64_t list = 0; list < list_count; ++list) {
        const auto [indices, values, count] = lists[list];
        if (count < 0) return Status::kBadSize;
        std::atomic<bool> good{true};
        const std::int64_t total = count;
        const std::int32_t* own = indices;
        parallel_for(total / kCheckedAtOnce + (total % kCheckedAtOnce != 0), [&, total, own](std::int64_t part) {
            const std::int64_t begin = part * kCheckedAtOnce;
            if (!ascends(own, begin, std::min(begin + kCheckedAtOnce, total), n)) good = false;
        });
        if (good) continue;
        *first_bad = first_that_does_not(indices, count, n);
        if (*first_bad < 0) return Status::kChangedMeanwhile;
        *bad_list = list;
        return Status::kIndexOutOfRange;
    }
    return Status::kOk;
}

// Adds what a list has in begin..end-1, from position *next on. Indices were checked; but should another thread write
// to them meanwhile, there is still nothing written outside.
template <class V, class T>
void add_within(const SparseList& list, std::int64_t begin, std::int64_t end, T* out, float scale, std::int64_t* next) {
    const V* values = static_cast<const V*>(list.values);
    const volatile std::int32_t* indices = list.indices;  // each is read once
    const auto length = static_cast<std::uint64_t>(end - begin);
    std::int64_t j = *next;
    for (; j < list.count; ++j) {
        const std::int64_t index = indices[j];
        if (static_cast<std::uint64_t>(index - begin) >= length) break;
        out[index] = from_float<T>(to_float(out[index]) + scale * to_float(values[j]));
    }
    *next = j;
}

// Lists touch most lines of a block, but not in an order that the machine could foresee. So while one list adds to a
// block, a part of the next block comes closer.
template <class T>
void prefetch_range(const T* out, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t i = begin; i < end; i += kLine) __builtin_prefetch(out + i, 1, 2);
}

template <class V, class T>
void add_lists(const SparseList* lists, std::int64_t list_count, T* out, std::int64_t n, float scale, bool clear) {
    const std::int64_t part_size = kBlock * kBlocksPerPart;
    parallel_for(n / part_size + (n % part_size != 0), [=](std::int64_t part) {
        const std::int64_t begin = part * part_size, end = std::min(begin + part_size, n);
        std::int64_t next[kListsAtOnce];
        for (std::int64_t list = 0; list < list_count; ++list) {
            const std::int32_t* indices = lists[list].indices;
            next[list] = std::lower_bound(indices, indices + lists[list].count, begin) - indices;
        }
        for (std::int64_t block = begin; block < end; block += kBlock) {
            const std::int64_t block_end = std::min(block + kBlock, end);
            if (clear) std::fill(out + block, out + block_end, T{});
            const std::int64_t ahead = clear ? 0 : std::min(block_end + kBlock, end) - block_end;
            for (std::int64_t list = 0; list < list_count; ++list) {
                prefetch_range(out, block_end + ahead * list / list_count, block_end + ahead * (list + 1) / list_count);
                add_within<V>(lists[list], block, block_end, out, scale, &next[list]);
            }
        }
    });
}

}  // namespace

Status scatter_lists(const SparseList* lists, std::int64_t list_count, DType values, Array out, std::int64_t n,
                     float scale, bool clear, std::int64_t* bad_list, std::int64_t* first_bad, Stream) noexcept {
    if (const Status status = check(lists, list_count, n, bad_list, first_bad); status != Status::kOk) return status;
    return dispatch_pair(out.dtype, values, [&](auto out_tag, auto values_tag) {
        using T = typename decltype(out_tag)::Type;
        using V = typename decltype(values_tag)::Type;
        T* target = static_cast<T*>(out.data);
        std::int64_t done = 0;
        do {  // at least once: without a list there may still be something to clear
            const std::int64_t now = std::min(list_count - done, kListsAtOnce);
            add_lists<V>(lists + done, now, target, n, scale, clear && done == 0);
            done += now;
        } while (done < list_count);
        return Status::kOk;
    });
}

}  // namespace hvd_compress::cpu
