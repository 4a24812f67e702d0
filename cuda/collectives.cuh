// Block-wide sums and the share of a partitioned launch, built on the wrappers of platform.cuh.
#pragma once

namespace edgegs {

struct Share {
    uint32 begin;
    uint32 end;
};

// The contiguous items of one block: the launch has a fixed number of blocks, whatever the number of items,
// so that no count has to travel to the host. Shares are multiples of `step` (the last may be cut short).
DEVICE Share share_of_block(uint32 n_items, uint32 step, uint32 rank, uint32 n_shares) {
    const uint32 n_steps = n_items / step + (n_items % step != 0);
    const uint32 steps_per_block = n_steps / n_shares + (n_steps % n_shares != 0);
    const uint64 begin = uint64(rank) * steps_per_block * step; // of the last blocks beyond 32 bits
    const uint64 end = begin + uint64(steps_per_block) * step;
    Share share;
    share.begin = uint32(begin < n_items ? begin : n_items);
    share.end = uint32(end < n_items ? end : n_items);
    return share;
}

DEVICE Share share_of_block(uint32 n_items, uint32 step) { return share_of_block(n_items, step, block_rank(), n_blocks()); }

template <typename T, int THREADS> struct SumShared {
    static_assert(THREADS % WARP_WIDTH == 0, "whole warps");
    T warp_sums[THREADS / WARP_WIDTH];
};

// Sum of the values of all lower lanes of the warp; `total` is the sum of all.
template <typename T> DEVICE T warp_exclusive_sum(T value, T &total) {
    T inclusive = value;
    for (int distance = 1; distance < WARP_WIDTH; distance *= 2) {
        const T lower = warp_shuffle_up(inclusive, distance);
        if (lane_rank() >= distance) inclusive += lower;
    }
    total = warp_shuffle(inclusive, WARP_WIDTH - 1);
    return inclusive - value;
}

// Sum of the values of all lower-ranked threads of the block; `total` is the sum of all.
// Shared memory may be used again only after the caller's next block_sync.
template <typename T, int THREADS>
DEVICE T block_exclusive_sum(T value, T &total, SumShared<T, THREADS> &shared) {
    T warp_total;
    const T in_warp = warp_exclusive_sum(value, warp_total);
    if (lane_rank() == WARP_WIDTH - 1) shared.warp_sums[warp_rank()] = warp_total;
    block_sync();

    T before = 0;
    total = 0;
    for (int warp = 0; warp < THREADS / WARP_WIDTH; ++warp) {
        if (warp < warp_rank()) before += shared.warp_sums[warp];
        total += shared.warp_sums[warp];
    }
    return before + in_warp;
}

} // namespace edgegs
