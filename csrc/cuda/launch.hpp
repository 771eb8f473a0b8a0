// Runs a kernel (block.hpp) on a stream of a GPU, or serially where this is compiled for the CPU.
#pragma once

#include "block.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress::cuda {

// Of a launch whose blocks go through tiles in turns, so many blocks at most: enough to fill a large GPU. For tests
// few, so that there is a second turn.
#ifdef HVD_COMPRESS_FIBERS
constexpr std::int64_t kMostBlocks = 2;
#else
constexpr std::int64_t kMostBlocks = 1024;
#endif

constexpr std::int64_t divided_up(std::int64_t n, std::int64_t by) { return n / by + (n % by != 0); }

#ifdef __CUDACC__

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) run(const Kernel kernel) {
    __shared__ typename Kernel::Shared shared;
    kernel(Block<Kernel::kThreads>{}, shared);
}

// An error of the launch, a bad stream for one, stays with the CUDA runtime until launch_status() asks.
template <class Kernel>
void launch(const Kernel& kernel, std::int64_t blocks, Stream stream) {
    if (blocks > 0)
        run<<<static_cast<unsigned>(blocks), Kernel::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
}

inline Status launch_status() { return cudaGetLastError() == cudaSuccess ? Status::kOk : Status::kLaunchFailed; }

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

inline Status launch_status() { return Status::kOk; }

#else

template <class Kernel>
void launch(const Kernel& kernel, std::int64_t blocks, Stream) {
    for (std::int64_t index = 0; index < blocks; ++index) {
        typename Kernel::Shared shared;
        std::memset(static_cast<void*>(&shared), 0xa5, sizeof shared);
        kernel(Block<Kernel::kThreads>{index, blocks}, shared);
    }
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
