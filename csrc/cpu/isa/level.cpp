#include "level.hpp"

#include <atomic>
#include <cstdint>

#ifdef HVD_COMPRESS_X86
#include <cpuid.h>
#endif

namespace hvd_compress::cpu {
namespace {

std::atomic<Level> chosen{best_level()};

#ifdef HVD_COMPRESS_X86

// Which registers the operating system saves when it switches threads: XCR0.
std::uint64_t saved_registers() noexcept {
    std::uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

constexpr bool has(std::uint64_t word, std::uint64_t bits) noexcept { return (word & bits) == bits; }

#endif

// Asks the processor itself: __builtin_cpu_supports asks the compiler's runtime, and that of zig always says no.
Level asked_level() noexcept {
#ifdef HVD_COMPRESS_X86
    constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6;
    unsigned a = 0, b = 0, c = 0, d = 0;
    const unsigned wanted = bit_OSXSAVE | bit_AVX | bit_F16C | bit_POPCNT;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, wanted)) return Level::kPortable;
    const std::uint64_t saved = saved_registers();
    if (!has(saved, kYmm) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2)) return Level::kPortable;
    const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return has(saved, kZmm) && has(b, avx512) ? Level::kAvx512 : Level::kAvx2;
#else
    return Level::kPortable;
#endif
}

}  // namespace

Level best_level() noexcept {
    static const Level best = asked_level();  // a virtual machine takes 10 us to answer
    return best;
}

Level level() noexcept { return chosen.load(std::memory_order_relaxed); }

bool set_level(Level wanted) noexcept {
    if (wanted < Level::kPortable || wanted > best_level()) return false;
    chosen = wanted;
    return true;
}

}  // namespace hvd_compress::cpu
