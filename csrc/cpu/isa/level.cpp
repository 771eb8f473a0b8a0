#include "level.hpp"

#include <atomic>

namespace hvd_compress::cpu {
namespace {

std::atomic<Level> chosen{best_level()};

}  // namespace

Level best_level() noexcept {
#ifdef HVD_COMPRESS_X86
    __builtin_cpu_init();
    const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("popcnt");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return Level::kAvx512;
    }
    if (avx2) return Level::kAvx2;
#endif
    return Level::kPortable;
}

Level level() noexcept { return chosen.load(std::memory_order_relaxed); }

bool set_level(Level wanted) noexcept {
    if (wanted < Level::kPortable || wanted > best_level()) return false;
    chosen = wanted;
    return true;
}

}  // namespace hvd_compress::cpu
