// The few words in which the kernels speak to the machine. CUDA's stand here, the host's in host/.
// Collectives take the whole warp or block: never after an early return, never inside a divergent branch
// (sm_53 has no independent thread scheduling; the host-check build verifies the rule).
#pragma once

namespace edgegs {
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef long long int64;
} // namespace edgegs

#ifdef EDGEGS_HOST
#include "host/platform_host.hpp"
#else

#define WARP_WIDTH 32
#define PACK_PIXELS 1
#define DEVICE __device__ __forceinline__
#define KERNEL(name, Params, cuda_threads) \
    extern "C" __global__ void __launch_bounds__(cuda_threads) name(const edgegs::Params p)
#define SHARED(Type, name) __shared__ Type name

namespace edgegs {

constexpr int block_threads(int cuda_threads) { return cuda_threads; }

DEVICE int thread_rank() { return threadIdx.x; }
DEVICE uint32 block_rank() { return blockIdx.x; }
DEVICE uint32 n_blocks() { return gridDim.x; }
DEVICE int lane_rank() { return threadIdx.x % WARP_WIDTH; }
DEVICE int warp_rank() { return threadIdx.x / WARP_WIDTH; }

DEVICE void block_sync() { __syncthreads(); }
DEVICE bool block_all(bool value) { return __syncthreads_and(value); }
DEVICE void warp_sync() { __syncwarp(); }
DEVICE uint32 warp_ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
template <typename T> DEVICE T warp_shuffle_up(T value, int distance) {
    return __shfl_up_sync(0xffffffffu, value, distance);
}
template <typename T> DEVICE T warp_shuffle(T value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

DEVICE int count_bits(uint32 bits) { return __popc(bits); }
DEVICE int lowest_bit(uint32 bits) { return __ffs(bits) - 1; }
DEVICE uint32 float_bits(float value) { return __float_as_uint(value); }
DEVICE float float_from_half(uint16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
// Never fused into a multiply-add: two kernels that must agree on a float write it with these.
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float log_2(float value) { return log2f(value); }

// Words that blocks hand to one another within a launch.
DEVICE uint32 take_ticket(uint32 *counter) { return atomicAdd(counter, 1u); }
DEVICE void add_to(uint64 *sum, uint64 value) { atomicAdd(sum, value); } // whole numbers: any order gives the same
DEVICE void publish(uint64 *word, uint64 value) {
    __threadfence();
    *(volatile uint64 *)word = value;
}
DEVICE uint64 observe(const uint64 *word) { return *(const volatile uint64 *)word; }

DEVICE float square_root(float value) { return sqrtf(value); }
DEVICE float round_up(float value) { return ceilf(value); }
DEVICE float round_down(float value) { return floorf(value); }

// A thread owns PACK_PIXELS neighbouring pixels; here one, so a pack is a float.
typedef float Pixels;
typedef bool PixelMask;
DEVICE Pixels spread(float value) { return value; }
DEVICE Pixels first_pixels(float first) { return first; } // first, first + 1, ...
DEVICE Pixels multiply_add(Pixels a, Pixels b, Pixels c) { return fmaf(a, b, c); }
DEVICE Pixels smaller(Pixels a, Pixels b) { return fminf(a, b); }
DEVICE Pixels select(PixelMask mask, Pixels a, Pixels b) { return mask ? a : b; }
DEVICE PixelMask all_pixels() { return true; }
DEVICE PixelMask no_pixels() { return false; }
DEVICE bool any_pixel(PixelMask mask) { return mask; }
DEVICE float pixel_of(Pixels pixels, int) { return pixels; }
DEVICE bool pixel_of_mask(PixelMask mask, int) { return mask; }
DEVICE Pixels exp_exact(Pixels x) { return expf(x); }
DEVICE Pixels exp2_exact(Pixels x) { return exp2f(x); }
DEVICE Pixels exp2_fast(Pixels x) {
    Pixels y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE Pixels pixels_from_step(Pixels steps) { return __int_as_float(__float2int_rz(steps)); }

} // namespace edgegs
#endif
