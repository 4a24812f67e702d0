// Stage 2, duplicate: one thread a splat, one instance for each of its tiles, in the order of the splats
// (and row by row within one), so that equal keys keep the splats' order through the stable sort.
// A block owns the same share of the splats as in project, and starts where its predecessors' counts end.
#pragma once

namespace edgegs {

// The original's key: the tile above, the bits of the (positive) float depth below.
struct KeyRef64 {
    static DEVICE uint64 key(uint32 tile, float depth) { return uint64(tile) << 32 | float_bits(depth); }
    static DEVICE uint32 tile(uint64 key) { return uint32(key >> 32); }
};

template <typename Key> DEVICE void duplicate_splat(const FrameParams &p, uint32 splat, uint64 first_instance) {
    const uint16 *rect = p.splat_rects + 4 * uint64(splat);
    const float depth = p.splat_depths[splat];
    uint64 instance = first_instance;
    for (uint32 y = rect[1]; y < rect[3]; ++y) {
        for (uint32 x = rect[0]; x < rect[2]; ++x, ++instance) {
            // counting goes on past the end: the renderer grows the buffers and draws the frame again
            if (instance >= p.instance_capacity) return;
            p.instance_keys_unsorted[instance] = Key::key(y * p.n_tiles_x + x, depth);
            p.instance_splats_unsorted[instance] = splat;
        }
    }
}

template <typename Key> DEVICE void duplicate(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUPLICATE_THREADS);
    struct Shared {
        SumShared<uint64, THREADS> before, visible, step;
    };
    SHARED(Shared, shared);

    // where this block starts: the sum of its predecessors' counts
    uint64 thread_before = 0, thread_visible = 0;
    for (uint32 block = thread_rank(); block <= block_rank(); block += THREADS) {
        if (block < block_rank()) thread_before += p.block_counts[2 * block];
        thread_visible += p.block_counts[2 * block + 1];
    }
    uint64 first_instance, n_visible;
    block_exclusive_sum<uint64, THREADS>(thread_before, first_instance, shared.before);
    block_exclusive_sum<uint64, THREADS>(thread_visible, n_visible, shared.visible);
    if (thread_rank() == 0 && block_rank() == n_blocks() - 1) {
        p.counters[0] = first_instance + p.block_counts[2 * block_rank()];
        p.counters[1] = n_visible;
    }

    const Share share = share_of_block(p.n_splats, THREADS);
    for (uint32 step = share.begin; step < share.end; step += THREADS) {
        const uint32 splat = step + thread_rank();
        const uint64 n_tiles = splat < share.end ? p.splat_n_tiles[splat] : 0;
        uint64 n_step;
        const uint64 offset = block_exclusive_sum<uint64, THREADS>(n_tiles, n_step, shared.step);
        if (n_tiles > 0) duplicate_splat<Key>(p, splat, first_instance + offset);
        first_instance += n_step;
        block_sync(); // shared.step is written again
    }
}

} // namespace edgegs
