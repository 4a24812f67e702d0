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
// The same, and at least so many blocks of it on a multiprocessor: registers are limited to what that leaves.
#define DENSE_KERNEL(name, Params, cuda_threads, n_blocks) \
    extern "C" __global__ void __launch_bounds__(cuda_threads, n_blocks) name(const edgegs::Params p)
#define SHARED(Type, name) __shared__ Type name
// Before a loop: not unrolled on sm_53, where a block of 1,024 threads has 32 registers for each.
#if __CUDA_ARCH__ < 700
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

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
// The n lowest bits, of all 32.
DEVICE uint32 low_bits(uint32 n) {
    uint32 above;
    asm("shl.b32 %0, %1, %2;" : "=r"(above) : "r"(1u), "r"(n)); // 0 where n is 32
    return above - 1u;
}
DEVICE int lowest_bit(uint32 bits) { return __ffs(bits) - 1; }
DEVICE uint32 float_bits(float value) { return __float_as_uint(value); }
DEVICE float float_from_half(uint16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
// One of the word's bytes, -128 to 127: put below the bits of 2^23, which conversion units would take longer for.
DEVICE float signed_byte_to_float(uint32 word, int byte) {
    return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440u | byte)) - (8388608.0f + 128.0f);
}
DEVICE float small_to_float(uint32 value) { return __uint_as_float(value | 0x4b000000u) - 8388608.0f; } // below 2^23
DEVICE uint16 half_from_float(float value) {
    uint16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
// Without the digits that a half has no room for.
DEVICE float cut_to_half(float value) { return __uint_as_float(__float_as_uint(value) & 0xffffe000u); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_TENSOR_CORES
// Two halves in a word, the first in its low bits.
DEVICE uint32 halves_from_floats(float first, float second) {
    uint32 halves;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(second), "f"(first));
    return halves;
}
// sums (16x8, floats) += a (16 rows of halves) times b (8 columns), by the warp. Lane 4 g + t holds rows g and g + 8 of a
// and of the sums, column g of b, columns 2 t and 2 t + 1 of the sums; of each row of a and column of b elements 2 t and
// 2 t + 1, of 16 also 2 t + 8 and 2 t + 9 (PTX ISA, mma.m16n8k8 and m16n8k16).
DEVICE void multiply_halves_8(float (&sums)[4], uint32 upper, uint32 lower, uint32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper), "r"(lower), "r"(b));
}
DEVICE void multiply_halves_16(float (&sums)[4], const uint32 (&a)[4], const uint32 *b) {
    const uint2 pair = *reinterpret_cast<const uint2 *>(b);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(pair.x), "r"(pair.y));
}
#endif
// Never fused into a multiply-add: two kernels that must agree on a float write it with these.
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float log_2(float value) { return log2f(value); }

DEVICE void prefetch(const void *address) { asm("prefetch.global.L2 [%0];" ::"l"(address)); }

// A launch may begin before the one before it ends, where the backend asks for it (edgegs/backends/chain.py): once all
// blocks of that one have said so, or are gone. What that one writes or reads, it may touch only after waiting: then all
// is done and seen. Every block that touches anything waits (PTX ISA, griddepcontrol). Not before kernels whose blocks
// begin with the longest lists: all of those would go to the multiprocessors that are free first.
DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Words that blocks hand to one another within a launch.
template <typename T> DEVICE T fetch_add(T *word, T value) { return atomicAdd(word, value); }
DEVICE void fetch_min(uint32 *word, uint32 value) { atomicMin(word, value); }
DEVICE void fetch_max(uint32 *word, uint32 value) { atomicMax(word, value); }
DEVICE uint32 take_ticket(uint32 *counter) { return fetch_add(counter, 1u); }
DEVICE void memory_fence() { __threadfence(); }
DEVICE void add_to(uint64 *sum, uint64 value) { atomicAdd(sum, value); } // whole numbers: any order gives the same
DEVICE void publish(uint64 *word, uint64 value) {
    __threadfence();
    *(volatile uint64 *)word = value;
}
template <typename T> DEVICE T observe(const T *word) { return *(const volatile T *)word; }

// Of a number and NaN, the number.
DEVICE float lesser(float a, float b) { return fminf(a, b); }
DEVICE float greater(float a, float b) { return fmaxf(a, b); }
// The hardware's, right to 2^-22; below 2^-126 they see and give 0.
DEVICE float reciprocal(float value) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
}
DEVICE float log_2_fast(float value) {
    float exponent;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(exponent) : "f"(value));
    return exponent;
}
DEVICE float inverse_square_root(float value) {
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
}
DEVICE float square_root_fast(float value) {
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(value));
    return root;
}
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
DEVICE Pixels larger(Pixels a, Pixels b) { return fmaxf(a, b); }
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
// The same, and 0 instead of what would be denormal: below 2^-126.
DEVICE Pixels exp2_flushed(Pixels x) { return exp2_fast(x); }
DEVICE Pixels pixels_from_step(Pixels steps) { return __int_as_float(__float2int_rz(steps)); }

} // namespace edgegs
#endif
