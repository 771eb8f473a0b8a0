// Which vector instructions the kernels use: the widest that the machine has, chosen when the program runs.
#pragma once

namespace hvd_compress::cpu {

enum class Level : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

Level best_level() noexcept;
Level level() noexcept;

// For tests and comparisons. Returns false, and changes nothing, for a level that this machine or build lacks.
bool set_level(Level level) noexcept;

// The table of the chosen level; each family has one table a level, compiled from one source.
#ifdef HVD_COMPRESS_X86
#define HVD_COMPRESS_TABLE(Type, name)   \
    namespace portable {                 \
    extern const Type name;              \
    }                                    \
    namespace avx2 {                     \
    extern const Type name;              \
    }                                    \
    namespace avx512 {                   \
    extern const Type name;              \
    }                                    \
    inline const Type& name() noexcept { \
        switch (level()) {               \
            case Level::kAvx512:         \
                return avx512::name;     \
            case Level::kAvx2:           \
                return avx2::name;       \
            case Level::kPortable:       \
                break;                   \
        }                                \
        return portable::name;           \
    }
#else
#define HVD_COMPRESS_TABLE(Type, name) \
    namespace portable {               \
    extern const Type name;            \
    }                                  \
    inline const Type& name() noexcept { return portable::name; }
#endif

}  // namespace hvd_compress::cpu
