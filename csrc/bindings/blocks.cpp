#include "hvd_compress/blocks.hpp"

#include <utility>
#include <vector>

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

using Sources = std::vector<std::pair<Address, Address>>;  // of codes and units

std::vector<BlockCodes> codes_of(const Sources& addresses) {
    std::vector<BlockCodes> sources;
    for (const auto& [codes, units] : addresses) {
        sources.push_back({pointer<const std::uint8_t>(codes), pointer<const std::uint16_t>(units)});
    }
    return sources;
}

BlockFormat format_of(int most, std::int64_t block, int fit) { return {most, block, static_cast<BlockFit>(fit)}; }

void block_quantize(Address grad, int grad_dtype, Address residual, Address out, std::int64_t n, int most,
                    std::int64_t block, int fit, bool random, std::uint64_t seed, std::uint32_t step,
                    std::uint32_t bucket, Address codes, Address units) {
    const RandomKey key{seed, step, bucket};
    check(cpu::block_quantize(const_array(grad, grad_dtype), const_array(residual, 0), array(out, 0), n,
                              format_of(most, block, fit), random ? &key : nullptr, pointer<std::uint8_t>(codes),
                              pointer<std::uint16_t>(units), nullptr));
}

// Whether all sums are finite.
bool block_sum(const Sources& addresses, std::int64_t n, int most, std::int64_t block, float weight, Address out,
               int out_dtype) {
    const auto sources = codes_of(addresses);
    std::int32_t finite = 0;
    check(cpu::block_sum(sources.data(), static_cast<int>(sources.size()), n, format_of(most, block, 0), weight,
                         array(out, out_dtype), &finite, nullptr));
    return finite != 0;
}

void block_sum_quantize(Address own, int own_dtype, const Sources& addresses, int place, Address rest, std::int64_t n,
                        int most, std::int64_t block, int fit, bool random, std::uint64_t seed, std::uint32_t step,
                        std::uint32_t bucket, Address codes, Address units) {
    const auto others = codes_of(addresses);
    const RandomKey key{seed, step, bucket};
    check(cpu::block_sum_quantize(const_array(own, own_dtype), others.data(), static_cast<int>(others.size()), place,
                                  array(rest, 0), n, format_of(most, block, fit), random ? &key : nullptr,
                                  pointer<std::uint8_t>(codes), pointer<std::uint16_t>(units), nullptr));
}

}  // namespace

void bind_blocks(pybind11::module_& module) {
    module.def("block_quantize", &block_quantize, WithoutGil());
    module.def("block_sum", &block_sum, WithoutGil());
    module.def("block_sum_quantize", &block_sum_quantize, WithoutGil());
}

}  // namespace hvd_compress::bindings
