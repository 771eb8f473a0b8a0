// The library's C interface: what hvd_compress/native/cuda.py calls. Statuses are those of types.hpp.
#include "hvd_compress/blocks.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/elias_fano.hpp"
#include "hvd_compress/feedback.hpp"
#include "hvd_compress/mstopk.hpp"
#include "hvd_compress/quantize.hpp"
#include "hvd_compress/scale.hpp"
#include "hvd_compress/scatter.hpp"
#include "hvd_compress/sign.hpp"
#include "hvd_compress/threshold.hpp"
#include "hvd_compress/topk.hpp"
#include "launch.hpp"

#define HVD_COMPRESS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace hvd_compress;

ConstArray const_array(const void* data, int dtype) { return {data, static_cast<DType>(dtype)}; }
Array array(void* data, int dtype) { return {data, static_cast<DType>(dtype)}; }
Fault fault_of(void* first, int tag) {
    return {static_cast<unsigned long long*>(first), static_cast<std::uint16_t>(tag)};
}
BlockFormat format_of(int most, std::int64_t block, int fit) { return {most, block, static_cast<BlockFit>(fit)}; }
int code(Status status) { return static_cast<int>(status); }

}  // namespace

// How many GPUs can be used; below zero, the runtime's error with its sign changed.
HVD_COMPRESS_EXPORT int hvd_compress_device_count() {
#ifdef __CUDACC__
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return error == cudaSuccess ? count : -static_cast<int>(error);
#else
    return 0;
#endif
}

#ifndef __CUDACC__
HVD_COMPRESS_EXPORT void hvd_compress_set_backwards(int backwards) { cuda::backwards = backwards != 0; }
HVD_COMPRESS_EXPORT int hvd_compress_launches() { return cuda::launches; }
#endif

// After a call that says kLaunchFailed, in the same thread.
HVD_COMPRESS_EXPORT const char* hvd_compress_launch_error() { return cuda::launch_error; }

HVD_COMPRESS_EXPORT void hvd_compress_topk_force(int way) { cuda::topk_force(static_cast<cuda::TopkWay>(way)); }

HVD_COMPRESS_EXPORT int hvd_compress_accumulate(const void* grad, int grad_dtype, const void* residual, void* out,
                                                int out_dtype, std::int64_t n, std::int32_t* finite, void* stream) {
    return code(cuda::accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype), array(out, out_dtype),
                                 n, finite, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_scale(void* x, int dtype, std::int64_t n, float factor, std::int32_t* finite,
                                           void* stream) {
    return code(cuda::scale(array(x, dtype), n, factor, finite, stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_topk_workspace_bytes(std::int64_t n, std::int64_t k) {
    return cuda::topk_workspace_bytes(n, k);
}

HVD_COMPRESS_EXPORT int hvd_compress_topk(const void* x, int dtype, std::int64_t n, std::int64_t k,
                                          std::int32_t* indices, void* values, void* workspace,
                                          std::size_t workspace_bytes, void* stream) {
    return code(cuda::topk(const_array(x, dtype), n, k, indices, values, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_topk_accumulate(const void* grad, int grad_dtype, const void* residual, void* out,
                                                     int out_dtype, std::int64_t n, std::int64_t k,
                                                     std::int32_t* indices, float* values, void* workspace,
                                                     std::size_t workspace_bytes, void* stream) {
    return code(cuda::topk_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype),
                                      array(out, out_dtype), n, k, indices, values, {workspace, workspace_bytes},
                                      stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_sign_workspace_bytes(std::int64_t n) {
    return cuda::sign_workspace_bytes(n);
}

HVD_COMPRESS_EXPORT int hvd_compress_sign_accumulate(const void* grad, int grad_dtype, const void* residual, void* out,
                                                     int out_dtype, std::int64_t n, std::uint8_t* bits, float* scale,
                                                     void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(cuda::sign_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype),
                                      array(out, out_dtype), n, bits, scale, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_sign_accumulate_kept(const void* grad, int grad_dtype, const void* kept,
                                                          const float* kept_scale, void* out, int out_dtype,
                                                          std::int64_t n, std::uint8_t* bits, float* scale,
                                                          void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(cuda::sign_accumulate_kept(const_array(grad, grad_dtype), const_array(kept, out_dtype), kept_scale,
                                           array(out, out_dtype), n, bits, scale, {workspace, workspace_bytes},
                                           stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_sign_add(const std::uint8_t* bits, const float* scale, void* out, int dtype,
                                              std::int64_t n, float weight, void* stream) {
    return code(cuda::sign_add(bits, scale, array(out, dtype), n, weight, stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_threshold_workspace_bytes(std::int64_t n) {
    return cuda::threshold_workspace_bytes(n);
}

HVD_COMPRESS_EXPORT int hvd_compress_threshold_count(const void* x, int dtype, std::int64_t n, float tau,
                                                     void* workspace, std::size_t workspace_bytes, std::int64_t* count,
                                                     void* stream) {
    return code(cuda::threshold_count(const_array(x, dtype), n, tau, count, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_threshold_select(const void* x, int dtype, std::int64_t n, float tau,
                                                      std::int64_t count, std::int32_t* indices, void* values,
                                                      void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(cuda::threshold_select(const_array(x, dtype), n, tau, count, indices, values,
                                       {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_threshold_accumulate(const void* grad, int grad_dtype, const float* residual,
                                                          float factor, const float* velocity, float* velocity_out,
                                                          float* out, std::int64_t n, float tau, void* workspace,
                                                          std::size_t workspace_bytes, std::int64_t* count,
                                                          void* stream) {
    return code(cuda::threshold_accumulate(const_array(grad, grad_dtype), residual, {factor, velocity, velocity_out},
                                           out, n, tau, count, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_threshold_take(float* x, float* velocity_out, std::int64_t n, float tau,
                                                    std::int64_t count, std::int32_t* indices, float* values,
                                                    void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(
        cuda::threshold_take(x, velocity_out, n, tau, count, indices, values, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_mstopk_workspace_bytes(std::int64_t n, std::int64_t k) {
    return cuda::mstopk_workspace_bytes(n, k);
}

HVD_COMPRESS_EXPORT int hvd_compress_mstopk(const void* x, int dtype, std::int64_t n, std::int64_t k, int rounds,
                                            std::int32_t* indices, void* values, void* workspace,
                                            std::size_t workspace_bytes, void* stream) {
    return code(
        cuda::mstopk(const_array(x, dtype), n, k, rounds, indices, values, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_mstopk_accumulate(const void* grad, int grad_dtype, const void* residual,
                                                       void* out, int out_dtype, std::int64_t n, std::int64_t k,
                                                       int rounds, std::int32_t* indices, float* values,
                                                       void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(cuda::mstopk_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype),
                                        array(out, out_dtype), n, k, rounds, indices, values,
                                        {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_curve_workspace_bytes(std::int64_t n) {
    return cuda::curve_workspace_bytes(n);
}

HVD_COMPRESS_EXPORT int hvd_compress_magnitude_curve(const void* x, int dtype, std::int64_t n, std::int64_t* counts,
                                                     double* shares, void* workspace, std::size_t workspace_bytes,
                                                     void* stream) {
    return code(cuda::magnitude_curve(const_array(x, dtype), n, counts, shares, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_quantize_workspace_bytes(std::int64_t n) {
    return cuda::quantize_workspace_bytes(n);
}

HVD_COMPRESS_EXPORT int hvd_compress_quantize_accumulate(const void* grad, int grad_dtype, const void* residual,
                                                         void* out, int out_dtype, std::int64_t n, int bits, int kind,
                                                         std::uint64_t seed, std::uint32_t step, std::uint32_t bucket,
                                                         std::uint8_t* packed, float* norm, void* workspace,
                                                         std::size_t workspace_bytes, void* stream) {
    return code(cuda::quantize_accumulate(const_array(grad, grad_dtype), const_array(residual, out_dtype),
                                          array(out, out_dtype), n, bits, static_cast<Norm>(kind), {seed, step, bucket},
                                          packed, norm, {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_quantize_add(const std::uint8_t* packed, const float* norm, void* out, int dtype,
                                                  std::int64_t n, int bits, float weight, void* stream) {
    return code(cuda::quantize_add(packed, norm, array(out, dtype), n, bits, weight, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_block_quantize(const void* grad, int grad_dtype, const void* residual, void* out,
                                                    std::int64_t n, int most, std::int64_t block, int fit, int random,
                                                    std::uint64_t seed, std::uint32_t step, std::uint32_t bucket,
                                                    std::uint8_t* codes, std::uint16_t* units, void* stream) {
    const RandomKey key{seed, step, bucket};
    return code(cuda::block_quantize(const_array(grad, grad_dtype), const_array(residual, 0), array(out, 0), n,
                                     format_of(most, block, fit), random != 0 ? &key : nullptr, codes, units, stream));
}

// Sources and others lie in the host's memory; what they point to, in the device's.
HVD_COMPRESS_EXPORT int hvd_compress_block_sum(const BlockCodes* sources, int count, std::int64_t n, int most,
                                               std::int64_t block, float weight, void* out, int out_dtype,
                                               std::int32_t* finite, void* stream) {
    return code(
        cuda::block_sum(sources, count, n, format_of(most, block, 0), weight, array(out, out_dtype), finite, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_block_sum_quantize(const void* own, int own_dtype, const BlockCodes* others,
                                                        int count, int place, void* rest, std::int64_t n, int most,
                                                        std::int64_t block, int fit, int random, std::uint64_t seed,
                                                        std::uint32_t step, std::uint32_t bucket, std::uint8_t* codes,
                                                        std::uint16_t* units, void* stream) {
    const RandomKey key{seed, step, bucket};
    return code(cuda::block_sum_quantize(const_array(own, own_dtype), others, count, place, array(rest, 0), n,
                                         format_of(most, block, fit), random != 0 ? &key : nullptr, codes, units,
                                         stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_coded_workspace_bytes(std::int64_t n, int most) {
    return cuda::coded_workspace_bytes(n, most);
}

HVD_COMPRESS_EXPORT int hvd_compress_block_encode(const std::uint8_t* codes, std::int64_t n, int most,
                                                  const std::uint32_t* words, const std::uint8_t* lengths,
                                                  const std::uint16_t* numbers, std::uint8_t* coded,
                                                  std::int64_t* bytes, void* workspace, std::size_t workspace_bytes,
                                                  void* stream) {
    return code(cuda::block_encode(codes, n, most, {words, lengths, numbers}, coded, bytes,
                                   {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_block_decode(const std::uint8_t* coded, std::int64_t bytes, std::int64_t n,
                                                  int most, const std::uint32_t* words, const std::uint8_t* lengths,
                                                  const std::uint16_t* numbers, std::uint8_t* codes, std::int32_t* bad,
                                                  void* workspace, std::size_t workspace_bytes, void* stream) {
    return code(cuda::block_decode(coded, bytes, n, most, {words, lengths, numbers}, codes, bad,
                                   {workspace, workspace_bytes}, stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_gather(const void* x, int dtype, std::int64_t n, const std::int32_t* indices,
                                            std::int64_t count, void* values, void* fault, int tag, void* stream) {
    return code(cuda::gather(const_array(x, dtype), n, indices, count, values, fault_of(fault, tag), stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_take(void* x, int dtype, std::int64_t n, const std::int32_t* indices,
                                          std::int64_t count, float* values, void* fault, int tag, void* stream) {
    return code(cuda::take(array(x, dtype), n, indices, count, values, fault_of(fault, tag), stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_scatter_add(const std::int32_t* indices, const void* values, int values_dtype,
                                                 std::int64_t count, void* out, int out_dtype, std::int64_t n,
                                                 float scale, void* fault, int tag, void* stream) {
    return code(cuda::scatter_add(indices, const_array(values, values_dtype), count, array(out, out_dtype), n, scale,
                                  fault_of(fault, tag), stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_scatter_set(const std::int32_t* indices, const void* values, int values_dtype,
                                                 std::int64_t count, void* out, int out_dtype, std::int64_t n,
                                                 float scale, void* fault, int tag, void* stream) {
    return code(cuda::scatter_set(indices, const_array(values, values_dtype), count, array(out, out_dtype), n, scale,
                                  fault_of(fault, tag), stream));
}

// `lists` lies in the host's memory; what it points to, in the device's.
HVD_COMPRESS_EXPORT int hvd_compress_scatter_lists(const SparseList* lists, std::int64_t list_count, int values_dtype,
                                                   void* out, int out_dtype, std::int64_t n, float scale, int clear,
                                                   void* fault, int tag, void* stream) {
    return code(cuda::scatter_lists(lists, list_count, static_cast<DType>(values_dtype), array(out, out_dtype), n,
                                    scale, clear != 0, fault_of(fault, tag), stream));
}

HVD_COMPRESS_EXPORT std::size_t hvd_compress_elias_fano_workspace_bytes(std::int64_t n, std::int64_t count) {
    return cuda::elias_fano_workspace_bytes(n, count);
}

HVD_COMPRESS_EXPORT int hvd_compress_elias_fano_encode(const std::int32_t* indices, std::int64_t count, std::int64_t n,
                                                       std::uint32_t* words, void* fault, int tag, void* stream) {
    return code(cuda::elias_fano_encode(indices, count, n, words, fault_of(fault, tag), stream));
}

HVD_COMPRESS_EXPORT int hvd_compress_elias_fano_decode(const std::uint32_t* words, std::int64_t count, std::int64_t n,
                                                       std::int32_t* indices, void* workspace,
                                                       std::size_t workspace_bytes, void* fault, int tag,
                                                       void* stream) {
    return code(
        cuda::elias_fano_decode(words, count, n, indices, {workspace, workspace_bytes}, fault_of(fault, tag), stream));
}
