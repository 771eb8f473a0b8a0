// What a kernel sees of the machine: one block of threads. The same kernel runs on a GPU, or on one CPU thread that
// plays all threads of a block in turn, for tests.
//
// A kernel is a struct with its arguments as members, `kThreads`, a type `Shared` for what its threads share, and
// operator()(block, shared). It is a sequence of steps: block.each(f) calls f(thread) for every thread of the block,
// block.sync() lets what one step wrote be read by the next, and Block::Each<T> is a variable that every thread has for
// itself from step to step.
#pragma once

#include <cstdint>
#include <cstring>

#include "hvd_compress/numeric.hpp"

#ifdef __CUDACC__
#define HVD_COMPRESS_TILE __device__ __forceinline__
#define HVD_COMPRESS_UNROLL _Pragma("unroll")  // where a register array is indexed
#else
#define HVD_COMPRESS_TILE inline
#define HVD_COMPRESS_UNROLL
#endif

namespace hvd_compress::cuda {

// 64 bits as atomicAdd() takes them.
using Count = unsigned long long;

#ifdef __CUDACC__

template <int threads>
class Block {
  public:
    template <class T>
    class Each {
      public:
        HVD_COMPRESS_TILE T& operator[](int) { return value_; }

      private:
        T value_;
    };

    const std::int64_t index = blockIdx.x, count = gridDim.x;

    template <class Step>
    HVD_COMPRESS_TILE void each(Step step) const {
        step(static_cast<int>(threadIdx.x));
    }
    HVD_COMPRESS_TILE void sync() const { __syncthreads(); }

    // Replaces every thread's x by the sum of those before it; returns the sum of all. `scratch` has 32 elements.
    template <class T>
    HVD_COMPRESS_TILE T exclusive_sum(Each<T>& x, T* scratch) const {
        static_assert(threads % 32 == 0 && threads <= 1024);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const T own = x[0];
        const T up_to_here = inclusive_sum(own, lane);
        if (lane == 31) scratch[warp] = up_to_here;
        __syncthreads();
        if (warp == 0) scratch[lane] = inclusive_sum(lane < threads / 32 ? scratch[lane] : T{0}, lane);
        __syncthreads();
        x[0] = up_to_here - own + (warp > 0 ? scratch[warp - 1] : T{0});
        const T total = scratch[threads / 32 - 1];
        __syncthreads();  // scratch may be used again
        return total;
    }

    // Replaces every thread's x by the largest of `width` neighbours: a power of two up to 64, the first neighbour's
    // number a multiple of it. `scratch` has 32 elements.
    template <class T>
    HVD_COMPRESS_TILE void largest_among(Each<T>& x, int width, T* scratch) const {
        const int warp = threadIdx.x / 32;
        T own = x[0];
        for (int distance = 1; distance < width && distance < 32; distance *= 2) {
            own = max(own, __shfl_xor_sync(0xffffffffu, own, distance));
        }
        if (width > 32) {
            if (threadIdx.x % 32 == 0) scratch[warp] = own;
            __syncthreads();
            own = max(own, scratch[warp ^ 1]);
            __syncthreads();  // scratch may be used again
        }
        x[0] = own;
    }

  private:
    template <class T>
    static HVD_COMPRESS_TILE T inclusive_sum(T x, int lane) {
        for (int distance = 1; distance < 32; distance *= 2) {
            const T before = __shfl_up_sync(0xffffffffu, x, distance);
            if (lane >= distance) x += before;
        }
        return x;
    }
};

template <class T>
HVD_COMPRESS_TILE T atomic_add(T* at, T value) {
    return atomicAdd(at, value);
}
HVD_COMPRESS_TILE void atomic_or(std::uint32_t* at, std::uint32_t bits) { atomicOr(at, bits); }
HVD_COMPRESS_TILE void atomic_min(Count* at, Count value) { atomicMin(at, value); }
HVD_COMPRESS_TILE int ones(std::uint32_t bits) { return __popc(bits); }

#else

// Whether the threads of a block take their turns from the last to the first: a step that needs what another thread
// did in the same step then comes out differently.
inline bool backwards = false;

template <int threads>
class Block {
  public:
    template <class T>
    class Each {
      public:
        // As a register's first content: nothing to rely on.
        Each() { std::memset(static_cast<void*>(values_), 0xa5, sizeof values_); }
        T& operator[](int thread) { return values_[thread]; }

      private:
        T values_[threads];
    };

    std::int64_t index, count;

    template <class Step>
    void each(Step step) const {
        const bool turned = backwards;  // which another call may change meanwhile
        for (int thread = 0; thread < threads; ++thread) step(turned ? threads - 1 - thread : thread);
    }
    void sync() const {}

    template <class T>
    T exclusive_sum(Each<T>& x, T*) const {
        T total{0};
        for (int thread = 0; thread < threads; ++thread) {
            const T own = x[thread];
            x[thread] = total;
            total += own;
        }
        return total;
    }

    template <class T>
    void largest_among(Each<T>& x, int width, T*) const {
        for (int first = 0; first < threads; first += width) {
            T largest = x[first];
            for (int t = first; t < first + width; ++t) largest = x[t] > largest ? x[t] : largest;
            for (int t = first; t < first + width; ++t) x[t] = largest;
        }
    }
};

template <class T>
T atomic_add(T* at, T value) {
    const T before = *at;
    *at += value;
    return before;
}
inline void atomic_or(std::uint32_t* at, std::uint32_t bits) { *at |= bits; }
inline void atomic_min(Count* at, Count value) { *at = value < *at ? value : *at; }
inline int ones(std::uint32_t bits) { return __builtin_popcount(bits); }

#endif

}  // namespace hvd_compress::cuda
