// Runs a kernel (block.hpp) on a stream of a GPU, or serially where this is compiled for the CPU.
#pragma once

#include <atomic>
#include <type_traits>

#include "block.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress::cuda {

constexpr std::int64_t divided_up(std::int64_t n, std::int64_t by) { return n / by + (n % by != 0); }

// Blocks of a launch whose blocks go through tiles in turns, where the machine says nothing else. For tests few, so
// that there is a second turn.
#ifdef HVD_COMPRESS_FIBERS
constexpr std::int64_t kMostBlocks = 2;
#else
constexpr std::int64_t kMostBlocks = 1024;
#endif

// What the CUDA runtime calls the last error of this thread's launches.
inline thread_local const char* launch_error = "";

#ifdef __CUDACC__

// How many blocks of a kernel a multiprocessor is to hold at once, at least: it limits registers. One, where a kernel
// says nothing; left to itself the compiler would rather spill.
template <class Kernel, class = void>
constexpr int kResident = 1;
template <class Kernel>
constexpr int kResident<Kernel, std::void_t<decltype(Kernel::kResidentBlocks)>> = Kernel::kResidentBlocks;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, kResident<Kernel>) run(const Kernel kernel) {
    __shared__ typename Kernel::Shared shared;
    kernel(Block<Kernel::kThreads>{}, shared);
}

// How many blocks of a kernel the GPU holds at once: with as many, none waits for others to end.
template <class Kernel>
std::int64_t resident_blocks() {
    constexpr int kDevices = 64;
    static std::atomic<int> known[kDevices];
    int device = 0, each = 0, processors = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return kMostBlocks;
    if (const int blocks = known[device].load(std::memory_order_relaxed); blocks > 0) return blocks;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, run<Kernel>, Kernel::kThreads, 0);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    known[device].store(each * processors, std::memory_order_relaxed);
    return each * processors > 0 ? each * processors : kMostBlocks;
}

// An error of the launch, a bad stream for one, stays with the CUDA runtime until launch_status() asks.
template <class Kernel>
void launch(const Kernel& kernel, std::int64_t blocks, Stream stream) {
    if (blocks > 0)
        run<<<static_cast<unsigned>(blocks), Kernel::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
}

inline Status launch_status() {
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return Status::kOk;
    launch_error = cudaGetErrorName(error);
    return Status::kLaunchFailed;
}

#elif defined(HVD_COMPRESS_FIBERS)

template <class Kernel>
void run(const void* kernel, void* shared, std::int64_t index, std::int64_t blocks) {
    (*static_cast<const Kernel*>(kernel))(Block<Kernel::kThreads>{index, blocks},
                                          *static_cast<typename Kernel::Shared*>(shared));
}

template <class Kernel>
void launch(const Kernel& kernel, std::int64_t blocks, Stream) {
    fibers::launch(__PRETTY_FUNCTION__, Kernel::kThreads, blocks, sizeof(typename Kernel::Shared), &run<Kernel>,
                   &kernel);
}

#else

inline int launches = 0;  // that were made, for tests

template <class Kernel>
void launch(const Kernel& kernel, std::int64_t blocks, Stream) {
    launches += blocks > 0;
    for (std::int64_t index = 0; index < blocks; ++index) {
        typename Kernel::Shared shared;
        std::memset(static_cast<void*>(&shared), 0xa5, sizeof shared);
        kernel(Block<Kernel::kThreads>{index, blocks}, shared);
    }
}

#endif

#ifndef __CUDACC__
template <class>
std::int64_t resident_blocks() {
    return kMostBlocks;
}

inline Status launch_status() { return Status::kOk; }
#endif

// Where the arrays of a workspace lie, each from a multiple of 256 bytes on.
class Parts {
  public:
    explicit Parts(void* start) : start_(static_cast<char*>(start)) {}

    template <class T>
    T* take(std::int64_t count) {
        T* const at = reinterpret_cast<T*>(start_ + bytes_);
        bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
        return at;
    }
    std::size_t bytes() const { return bytes_; }

  private:
    char* start_;
    std::size_t bytes_ = 0;
};

}  // namespace hvd_compress::cuda
