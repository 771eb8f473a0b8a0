// What kernels are played on: memory, tensors of some dtype, and numbers that take their branches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "hvd_compress/numeric.hpp"
#include "hvd_compress/sample.hpp"
#include "hvd_compress/types.hpp"

#ifdef HVD_COMPRESS_FIBERS
#include "fibers.hpp"
#endif

namespace hvd_compress::played {

#ifdef HVD_COMPRESS_FIBERS
inline void* allocate(std::size_t bytes) { return ::hvd_compress::fibers::allocate(bytes); }
inline void free_all() { ::hvd_compress::fibers::player::free_all(); }
#else
inline std::vector<void*> allocated;
inline void* allocate(std::size_t bytes) {
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    allocated.push_back(memory);
    return memory;
}
inline void free_all() {
    for (void* const memory : allocated) std::free(memory);
    allocated.clear();
}
#endif

inline std::string running;  // the name of the case

inline void print(const char* what, const void* data, std::size_t bytes) {
    std::uint64_t sum = 14695981039346656037ull;  // FNV-1a
    for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
    std::printf("result %s %s %016llx\n", running.c_str(), what, static_cast<unsigned long long>(sum));
}

// `count` T's of the device, the first of them `offset` T's behind an aligned address.
template <class T>
struct Device {
    T* data;
    std::size_t count;

    explicit Device(std::int64_t n, int offset = 0)
        : data(static_cast<T*>(allocate((static_cast<std::size_t>(n + offset)) * sizeof(T))) + offset),
          count(static_cast<std::size_t>(n)) {}
    void print(const char* what) const { played::print(what, data, count * sizeof(T)); }
};

enum class Kind { kNormal, kTies, kZeros, kWide, kNotFinite, kMisleading };

inline std::vector<float> drawn(std::int64_t n, Kind kind, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(n));
    const std::int64_t stride = n / std::max<std::int64_t>(sample_blocks(n), 1);
    std::vector<bool> is_sampled(x.size());
    for (std::int64_t block = 0; kind == Kind::kMisleading && block < sample_blocks(n); ++block) {
        std::fill_n(is_sampled.begin() + sampled_block(block, stride), kSampledBlock, true);
    }
    for (float& value : x) {
        const float own = normal(random);
        switch (kind) {
            case Kind::kNormal:
                value = own;
                break;
            case Kind::kTies:
                value = std::round(own);
                break;
            case Kind::kZeros:
                value = 0.0f;
                break;
            case Kind::kWide:
                value = own * own * own * own * own * own * own;
                break;
            case Kind::kMisleading:  // the sample is of larger ones than the rest
                value = own * (is_sampled[static_cast<std::size_t>(&value - x.data())] ? 10.0f : 1.0f);
                break;
            case Kind::kNotFinite:
                value = random() % 4000 == 0 ? INFINITY : own;
                break;
        }
    }
    return x;
}

// n elements of some dtype.
struct Tensor {
    DType dtype;
    std::int64_t n;
    Device<std::uint8_t> memory;
    std::uint8_t* data;

    Tensor(DType type, std::int64_t numel, int offset)
        : dtype(type), n(numel), memory((numel + offset) * size_of(type)), data(memory.data + offset * size_of(type)) {}
    Tensor(DType type, const std::vector<float>& x, int offset)
        : Tensor(type, static_cast<std::int64_t>(x.size()), offset) {
        for (std::size_t i = 0; i < x.size(); ++i) {
            if (type == DType::kFloat32) reinterpret_cast<float*>(data)[i] = x[i];
            if (type == DType::kFloat16) reinterpret_cast<Half*>(data)[i] = from_float<Half>(x[i]);
            if (type == DType::kBFloat16) reinterpret_cast<BFloat16*>(data)[i] = from_float<BFloat16>(x[i]);
        }
    }

    ConstArray read() const { return {data, dtype}; }
    Array write() const { return {data, dtype}; }
    void print(const char* what) const { played::print(what, data, static_cast<std::size_t>(n * size_of(dtype))); }

    static std::int64_t size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }
};

struct Layout {
    const char* name;
    DType grad, wide;
    int offset;  // in elements
    bool apart;  // whether `out` is not the residual
};

constexpr Layout kLayouts[] = {
    {"fp32", DType::kFloat32, DType::kFloat32, 0, false},
    {"fp32-1-apart", DType::kFloat32, DType::kFloat32, 1, true},
    {"fp16-apart", DType::kFloat16, DType::kFloat16, 0, true},
    {"fp16-fp32-3", DType::kFloat16, DType::kFloat32, 3, false},
    {"bf16-1", DType::kBFloat16, DType::kBFloat16, 1, false},
    {"bf16-fp32-apart", DType::kBFloat16, DType::kFloat32, 0, true},
};

}  // namespace hvd_compress::played
