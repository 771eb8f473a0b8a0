// What a kernel sees of the machine: one block of threads. The same kernel runs on a GPU and, for tests, on fibers or
// on one CPU thread that plays all threads of a block in turn.
//
// A kernel is a struct with its arguments as members, `kThreads`, a type `Shared` for what its threads share, and
// operator()(block, shared). It is a sequence of steps: block.each(f) calls f(thread) for every thread of the block,
// block.sync() lets what one step wrote be read by the next, and Block::Each<T> is a variable that every thread has for
// itself from step to step.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine.hpp"

namespace hvd_compress::cuda {

#if defined(__CUDACC__) || defined(HVD_COMPRESS_FIBERS)

// A variable that every thread has for itself.
template <class T>
class Own {
  public:
#ifdef HVD_COMPRESS_FIBERS
    Own() { std::memset(static_cast<void*>(&value_), fibers::poison(), sizeof value_); }  // nothing to rely on
#endif
    HVD_COMPRESS_TILE T& operator[](int) { return value_; }

  private:
    T value_;
};

// 32 threads of a block, which learn from each other without memory.
class Warp {
  public:
    template <class T>
    using Each = Own<T>;

    int index;  // within its block

    // Calls step(lane) for each of its threads.
    template <class Step>
    HVD_COMPRESS_TILE void each(Step step) const {
        step(static_cast<int>(thread_index() % 32));
    }
    // Bit `lane` says what that one has.
    HVD_COMPRESS_TILE std::uint32_t ballot(Each<bool>& x) const { return cuda::ballot(x[0]); }

    template <class T>
    HVD_COMPRESS_TILE T sum(Each<T>& x) const {
        T own = x[0];
        for (int distance = 16; distance > 0; distance /= 2) own += shuffle_xor(own, distance);
        return own;
    }
    // Replaces every thread's x by the sum of those up to it.
    template <class T>
    HVD_COMPRESS_TILE void inclusive_sum(Each<T>& x) const {
        const int lane = static_cast<int>(thread_index() % 32);
        for (int distance = 1; distance < 32; distance *= 2) {
            const T before = shuffle_up(x[0], distance);
            if (lane >= distance) x[0] += before;
        }
    }
};

template <int threads>
class Block {
  public:
    template <class T>
    using Each = Own<T>;

#ifdef __CUDACC__
    const std::int64_t index = blockIdx.x, count = gridDim.x;
#else
    std::int64_t index, count;
#endif

    template <class Step>
    HVD_COMPRESS_TILE void each(Step step) const {
        step(static_cast<int>(thread_index()));
    }
    // Calls step(warp) for each warp. Within it none of the block's other functions is called.
    template <class Step>
    HVD_COMPRESS_TILE void each_warp(Step step) const {
        step(Warp{static_cast<int>(thread_index() / 32)});
    }
    HVD_COMPRESS_TILE void sync() const { barrier(); }

    // Whether `expected` - 1 other blocks have come here before, all of whose writes are then there. `arrived` is 0
    // before the first, `flag` shared.
    HVD_COMPRESS_TILE bool is_last(std::uint32_t* arrived, std::int64_t expected, std::uint32_t* flag) const {
        barrier();
        if (thread_index() == 0) *flag = take_ticket(arrived) + 1 == static_cast<std::uint32_t>(expected);
        barrier();
        return *flag != 0;
    }

    // Replaces every thread's x by the sum of those before it; returns the sum of all. `scratch` has 32 elements, and
    // may be used again after a sync().
    template <class T>
    HVD_COMPRESS_TILE T exclusive_sum(Each<T>& x, T* scratch) const {
        static_assert(threads % 32 == 0 && threads <= 1024);
        const int lane = thread_index() % 32, warp = thread_index() / 32;
        const T own = x[0];
        const T up_to_here = inclusive_sum(own, lane);
        if (lane == 31) scratch[warp] = up_to_here;
        barrier();
        if (warp == 0) scratch[lane] = inclusive_sum(lane < threads / 32 ? scratch[lane] : T{0}, lane);
        barrier();
        x[0] = up_to_here - own + (warp > 0 ? scratch[warp - 1] : T{0});
        return scratch[threads / 32 - 1];
    }

    // Replaces every thread's x by the largest of `width` neighbours: a power of two up to 64, the first neighbour's
    // number a multiple of it. `scratch` has 32 elements, and may be used again after a sync().
    template <class T>
    HVD_COMPRESS_TILE void largest_among(Each<T>& x, int width, T* scratch) const {
        const int warp = thread_index() / 32;
        T own = x[0];
        for (int distance = 1; distance < width && distance < 32; distance *= 2) {
            own = larger_of(own, shuffle_xor(own, distance));
        }
        if (width > 32) {
            if (thread_index() % 32 == 0) scratch[warp] = own;
            barrier();
            own = larger_of(own, scratch[warp ^ 1]);
        }
        x[0] = own;
    }

  private:
    template <class T>
    static HVD_COMPRESS_TILE T inclusive_sum(T x, int lane) {
        for (int distance = 1; distance < 32; distance *= 2) {
            const T before = shuffle_up(x, distance);
            if (lane >= distance) x += before;
        }
        return x;
    }
};

#else

// Whether the threads of a block take their turns from the last to the first: a step that needs what another thread
// did in the same step then comes out differently.
inline bool backwards = false;

template <class T, int threads>
class Owned {
  public:
    // As a register's first content: nothing to rely on.
    Owned() { std::memset(static_cast<void*>(values_), 0xa5, sizeof values_); }
    T& operator[](int thread) { return values_[thread]; }

  private:
    T values_[threads];
};

class Warp {
  public:
    template <class T>
    using Each = Owned<T, 32>;

    int index;

    template <class Step>
    void each(Step step) const {
        const bool turned = backwards;  // which another call may change meanwhile
        for (int lane = 0; lane < 32; ++lane) step(turned ? 31 - lane : lane);
    }
    std::uint32_t ballot(Each<bool>& x) const {
        std::uint32_t bits = 0;
        for (int lane = 0; lane < 32; ++lane) bits |= static_cast<std::uint32_t>(x[lane]) << lane;
        return bits;
    }
    template <class T>
    T sum(Each<T>& x) const {
        T total{0};
        for (int lane = 0; lane < 32; ++lane) total += x[lane];
        return total;
    }
    template <class T>
    void inclusive_sum(Each<T>& x) const {
        for (int lane = 1; lane < 32; ++lane) x[lane] += x[lane - 1];
    }
};

template <int threads>
class Block {
  public:
    template <class T>
    using Each = Owned<T, threads>;

    std::int64_t index, count;

    template <class Step>
    void each(Step step) const {
        const bool turned = backwards;
        for (int thread = 0; thread < threads; ++thread) step(turned ? threads - 1 - thread : thread);
    }
    template <class Step>
    void each_warp(Step step) const {
        const bool turned = backwards;
        for (int warp = 0; warp < threads / 32; ++warp) step(Warp{turned ? threads / 32 - 1 - warp : warp});
    }
    void sync() const {}
    bool is_last(std::uint32_t* arrived, std::int64_t expected, std::uint32_t*) const { return ++*arrived == expected; }

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

#endif

}  // namespace hvd_compress::cuda
