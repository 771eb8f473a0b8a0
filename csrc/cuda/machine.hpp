// What a kernel needs of a machine that runs threads side by side: a GPU or, for tests, fibers
// (tests/native/cpp/player). One CPU thread that plays all others in turn needs the atomics alone.
#pragma once

#include <cstdint>

#include "hvd_compress/numeric.hpp"

#ifdef __CUDACC__
#define HVD_COMPRESS_TILE __device__ __forceinline__
#define HVD_COMPRESS_UNROLL _Pragma("unroll")  // where a register array is indexed
#elif defined(HVD_COMPRESS_FIBERS)
#include "fibers.hpp"
#define HVD_COMPRESS_TILE inline __attribute__((always_inline))  // a place of a kernel is then an address of its code
#define HVD_COMPRESS_UNROLL
#else
#define HVD_COMPRESS_TILE inline
#define HVD_COMPRESS_UNROLL
#endif

namespace hvd_compress::cuda {

// 64 bits as atomicAdd() takes them.
using Count = unsigned long long;

#ifdef __CUDACC__

HVD_COMPRESS_TILE unsigned thread_index() { return threadIdx.x; }
HVD_COMPRESS_TILE void barrier() { __syncthreads(); }
template <class T>
HVD_COMPRESS_TILE T shuffle_up(T x, int distance) {
    return __shfl_up_sync(0xffffffffu, x, distance);
}
template <class T>
HVD_COMPRESS_TILE T shuffle_xor(T x, int distance) {
    return __shfl_xor_sync(0xffffffffu, x, distance);
}
HVD_COMPRESS_TILE std::uint32_t ballot(bool x) { return __ballot_sync(0xffffffffu, x); }

template <class T>
HVD_COMPRESS_TILE T atomic_add(T* at, T value) {
    return atomicAdd(at, value);
}
// How many threads have taken one before. What this block did before its last barrier is done for whoever takes one
// later, and what those did who took one earlier is done for this block after its next barrier.
HVD_COMPRESS_TILE std::uint32_t take_ticket(std::uint32_t* at) {
    __threadfence();
    const std::uint32_t before = atomicAdd(at, 1u);
    __threadfence();
    return before;
}
HVD_COMPRESS_TILE void atomic_or(std::uint32_t* at, std::uint32_t bits) { atomicOr(at, bits); }
HVD_COMPRESS_TILE void atomic_min(Count* at, Count value) { atomicMin(at, value); }
HVD_COMPRESS_TILE void store_same(std::int32_t* at, std::int32_t value) { *at = value; }
HVD_COMPRESS_TILE int ones(std::uint32_t bits) { return __popc(bits); }
HVD_COMPRESS_TILE std::uint32_t larger_of(std::uint32_t a, std::uint32_t b) { return max(a, b); }

#elif defined(HVD_COMPRESS_FIBERS)

HVD_COMPRESS_TILE unsigned thread_index() { return static_cast<unsigned>(fibers::thread()); }
HVD_COMPRESS_TILE void barrier() { fibers::barrier(); }
template <class T>
HVD_COMPRESS_TILE T shuffled(T x, int lane) {
    T other;
    fibers::exchange(&x, &other, sizeof x, lane);
    return other;
}
template <class T>
HVD_COMPRESS_TILE T shuffle_up(T x, int distance) {
    const int lane = static_cast<int>(thread_index() % 32);
    return shuffled(x, lane >= distance ? lane - distance : lane);
}
template <class T>
HVD_COMPRESS_TILE T shuffle_xor(T x, int distance) {
    return shuffled(x, static_cast<int>(thread_index() % 32) ^ distance);
}
HVD_COMPRESS_TILE std::uint32_t ballot(bool x) { return fibers::ballot(x); }

template <class T>
HVD_COMPRESS_TILE T atomic_add(T* at, T value) {
    return fibers::atomic_add(at, value);
}
HVD_COMPRESS_TILE std::uint32_t take_ticket(std::uint32_t* at) { return fibers::take_ticket(at); }
HVD_COMPRESS_TILE void atomic_or(std::uint32_t* at, std::uint32_t bits) { fibers::atomic_or(at, bits); }
HVD_COMPRESS_TILE void atomic_min(Count* at, Count value) { fibers::atomic_min(at, value); }
HVD_COMPRESS_TILE void store_same(std::int32_t* at, std::int32_t value) { fibers::store_same(at, value); }

#else

template <class T>
T atomic_add(T* at, T value) {
    const T before = *at;
    *at += value;
    return before;
}
inline void atomic_or(std::uint32_t* at, std::uint32_t bits) { *at |= bits; }
inline void atomic_min(Count* at, Count value) { *at = value < *at ? value : *at; }
inline void store_same(std::int32_t* at, std::int32_t value) { *at = value; }

#endif

#ifndef __CUDACC__
HVD_COMPRESS_TILE int ones(std::uint32_t bits) { return __builtin_popcount(bits); }
HVD_COMPRESS_TILE std::uint32_t larger_of(std::uint32_t a, std::uint32_t b) { return b > a ? b : a; }
#endif

}  // namespace hvd_compress::cuda
