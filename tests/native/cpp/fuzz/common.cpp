#include "common.hpp"

#include <algorithm>

#include "../../../../csrc/cpu/isa/level.hpp"

namespace fuzz {

void common_settings(Random& random, Payload& payload, std::int64_t large) {
    std::int64_t n = random.below(std::int64_t{1} << (1 + random.below(9)));
    if (random.one_in(16)) n = random.below(5000);
    if (random.one_in(512)) n = large / 2 + random.below(large / 2);
    payload[kN] = n;
    payload[kDType] = random.below(3);
    payload[kValues] = random.one_in(2) ? 0 : payload[kDType];
    payload[kLevel] = random.below(3);
    payload[kShift] = random.one_in(2) ? 0 : random.below(16);
    payload[kCompare] = random.one_in(8);
}

void use_level(std::int64_t level) {
    using hvd_compress::cpu::Level;
    const int best = static_cast<int>(hvd_compress::cpu::best_level());
    const auto wanted = static_cast<Level>(std::min(static_cast<int>(level), best));
    expect(hvd_compress::cpu::set_level(wanted), "the fuzzer itself: no such level");
}

std::vector<float> gradient(Random& random, std::int64_t n) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.below(40)) - 30);
    std::vector<float> found(static_cast<std::size_t>(n));
    for (float& value : found) {
        const auto bits = random();
        value = scale * (static_cast<float>(bits & 0xffff) + static_cast<float>(bits >> 16 & 0xffff) -
                         static_cast<float>(bits >> 32 & 0xffff) - static_cast<float>(bits >> 48));
    }
    static constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 1e-45f, -0.0f, 3e38f, 0.0f};
    if (n > 0 && random.one_in(8)) found[static_cast<std::size_t>(random.below(n))] = random.of(kSpecial);
    return found;
}

bool same(const void* one, const void* other, DType dtype, std::int64_t n) {
    const auto bytes = static_cast<std::size_t>(n * size_of(dtype));
    if (bytes == 0 || std::memcmp(one, other, bytes) == 0) return true;
    for (std::int64_t i = 0; i < n; ++i) {
        const float a = value_at(one, dtype, i), b = value_at(other, dtype, i);
        if (std::memcmp(&a, &b, sizeof(a)) != 0 && !(std::isnan(a) && std::isnan(b))) return false;
    }
    return true;
}

bool all_finite(const void* data, DType dtype, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        if (!std::isfinite(value_at(data, dtype, i))) return false;
    }
    return true;
}

}  // namespace fuzz
