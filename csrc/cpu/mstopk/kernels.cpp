#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/sum.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

// Adds up what passes by, of a block that begins at a multiple of kSumLanes.
class Meter {
  public:
    void add(Isa::Vec v, std::int64_t i) {
        Isa::add_magnitudes(v, lanes_ + i % kSumLanes);
        largest_ = Isa::larger(largest_, Isa::keys(v));
    }
    Magnitudes read() { return {add_lanes(lanes_, kSumLanes), Isa::largest(largest_)}; }

  private:
    double lanes_[kSumLanes] = {};
    Isa::Words largest_ = Isa::all_words(0);
};

template <class T, bool kMany>
std::int64_t collect(const void* data, Place block, Key low, Candidates found, Magnitudes* of_block) {
    const T* x = static_cast<const T*>(data);
    Meter meter;
    std::int64_t count = 0;
    for (std::int64_t i = block.begin; i < block.end; i += kLanes) {
        const auto v = load_until(x, i, block.end);
        meter.add(v, i);
        set_apart<kMany>(v, Isa::at_least(v, low), i, found.values, found.indices, &count);
    }
    *of_block = meter.read();
    return count;
}

template <class G, class R, bool kMany>
std::int64_t accumulate_collect(const void* grad, const void* residual, void* out, Place block, bool past_caches,
                                Key low, Candidates found, Magnitudes* of_block) {
    Meter meter;
    std::int64_t count = 0;
    accumulate(static_cast<const G*>(grad), static_cast<const R*>(residual), static_cast<R*>(out), block, past_caches,
               [&](std::int64_t i, Isa::Vec v) {
                   meter.add(v, i);
                   const std::uint32_t mask = Isa::at_least(v, low);
                   set_apart<kMany>(v, mask, i, found.values, found.indices, &count);
                   return Isa::without(v, mask);
               });
    *of_block = meter.read();
    return count;
}

}  // namespace

extern const MstopkKernels mstopk_kernels = {
    {{collect<float, false>, collect<Half, false>, collect<BFloat16, false>},
     {collect<float, true>, collect<Half, true>, collect<BFloat16, true>}},
    {{{accumulate_collect<float, float, false>, accumulate_collect<float, float, false>},
      {accumulate_collect<Half, float, false>, accumulate_collect<Half, Half, false>},
      {accumulate_collect<BFloat16, float, false>, accumulate_collect<BFloat16, BFloat16, false>}},
     {{accumulate_collect<float, float, true>, accumulate_collect<float, float, true>},
      {accumulate_collect<Half, float, true>, accumulate_collect<Half, Half, true>},
      {accumulate_collect<BFloat16, float, true>, accumulate_collect<BFloat16, BFloat16, true>}}},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL
