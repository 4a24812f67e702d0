// Stage 2, duplicate: one instance for each tile of each splat, in the order of the splats (and row by row within
// one), so that equal keys keep that order through the stable sort. A thread emits the tiles of a small splat, a whole
// warp those of a large one. Keys: `ref64` and `packed32` hold tile and depth; `split` holds the tile alone, and the
// splats come in the order of their depth.
#pragma once

namespace edgegs {

// The original's key: the tile above, the bits of the (positive) float depth below.
struct KeyRef64 {
    typedef uint64 Type;
    static DEVICE Type key(const FrameParams &, uint32 tile, float depth) {
        return uint64(tile) << 32 | float_bits(depth);
    }
    static DEVICE uint32 tile(const FrameParams &, Type key) { return uint32(key >> 32); }
};

// RoofGS's key: as many bits as the tiles need, the rest for the quantised depth; not linear in it as there, but in its
// float's bits, which rise like the logarithm: trained scenes have floaters a thousand times as far as what is looked at.
struct KeyPacked32 {
    typedef uint32 Type;
    static DEVICE Type key(const FrameParams &p, uint32 tile, float depth) {
        const float last = float((1u << p.depth_bits) - 1u);
        const float rise = float(int(float_bits(depth) - p.depth_begin));
        const float step = round_down(clamp(rise * p.depth_scale, 0.0f, last));
        return tile << p.depth_bits | uint32(step);
    }
    static DEVICE uint32 tile(const FrameParams &p, Type key) { return key >> p.depth_bits; }
};

struct KeySplit {
    typedef uint16 Type;
    static DEVICE Type key(const FrameParams &, uint32 tile, float) { return Type(tile); }
    static DEVICE uint32 tile(const FrameParams &, Type key) { return key; }
};

template <typename Key>
DEVICE void emit_instance(const FrameParams &p, uint64 instance, uint32 tile, float depth, uint32 splat) {
    // counting goes on past the end: the renderer grows the buffers and draws the frame again
    if (instance >= p.instance_capacity) return;
    ((typename Key::Type *)p.instance_keys_unsorted)[instance] = Key::key(p, tile, depth);
    p.instance_splats_unsorted[instance] = splat;
}

// What one thread has to emit. `n_tiles` is 0 for a thread without a splat.
struct Emission {
    Footprint footprint;
    float depth;
    uint32 splat;
    uint32 n_tiles;
    uint64 first_instance;
};

template <typename T> DEVICE T broadcast(const T &value, int lane) {
    union {
        T value;
        uint32 words[sizeof(T) / 4];
    } copy;
    static_assert(sizeof(T) % 4 == 0, "whole words");
    copy.value = value;
    for (int i = 0; i < int(sizeof(T) / 4); ++i) copy.words[i] = warp_shuffle(copy.words[i], lane);
    return copy.value;
}

template <typename Key, typename Cull> DEVICE void emit_alone(const FrameParams &p, const Emission &e) {
    uint64 instance = e.first_instance;
    const uint64 end = e.first_instance + e.n_tiles;
    for (uint32 y = e.footprint.rect.y_begin; y < e.footprint.rect.y_end; ++y) {
        const Span span = Cull::row(p, e.footprint, y);
        for (uint32 x = span.begin; x < span.end && instance < end; ++x, ++instance)
            emit_instance<Key>(p, instance, y * p.n_tiles_x + x, e.depth, e.splat);
    }
}

// The whole warp emits one splat: a lane a row finds its columns, then the warp writes each row side by side.
template <typename Key, typename Cull> DEVICE void emit_together(const FrameParams &p, const Emission &e) {
    uint64 instance = e.first_instance;
    const uint64 end = e.first_instance + e.n_tiles;
    for (uint32 first = e.footprint.rect.y_begin; first < e.footprint.rect.y_end; first += WARP_WIDTH) {
        const uint32 y = first + lane_rank();
        Span span = {0, 0};
        if (y < e.footprint.rect.y_end) span = Cull::row(p, e.footprint, y);
        const uint32 left = e.footprint.rect.y_end - first;
        const int n_rows = int(left < uint32(WARP_WIDTH) ? left : uint32(WARP_WIDTH));
        for (int row = 0; row < n_rows; ++row) {
            const uint32 begin = warp_shuffle(span.begin, row), row_end = warp_shuffle(span.end, row);
            for (uint32 x = begin + lane_rank(); x < row_end; x += WARP_WIDTH)
                if (instance + (x - begin) < end)
                    emit_instance<Key>(p, instance + (x - begin), (first + row) * p.n_tiles_x + x, e.depth, e.splat);
            instance += row_end - begin;
        }
    }
}

// Emits the splats of all threads of the warp; every lane must call it.
template <typename Key, typename Cull> DEVICE void emit(const FrameParams &p, const Emission &mine) {
    const bool is_large = WARP_WIDTH > 1 && mine.n_tiles > EMIT_BY_WARP;
    if (mine.n_tiles > 0 && !is_large) emit_alone<Key, Cull>(p, mine);
    for (uint32 large = warp_ballot(is_large); large != 0; large &= large - 1)
        emit_together<Key, Cull>(p, broadcast(mine, lowest_bit(large)));
}

// Sum of the counts of all blocks before this one: `which` is 0 for instances, 1 for visible splats.
template <int THREADS>
DEVICE uint64 count_before(const FrameParams &p, int which, SumShared<uint64, THREADS> &shared) {
    uint64 mine = 0, total;
    for (uint32 block = thread_rank(); block < block_rank(); block += THREADS) mine += p.block_counts[2 * block + which];
    block_exclusive_sum<uint64, THREADS>(mine, total, shared);
    return total;
}

static_assert(DUPLICATE_THREADS == PROJECT_THREADS, "shares of the splats are the same in both stages");

// Splats in their own order. A block owns the same share as in project.
template <typename Key, typename Cull> DEVICE void duplicate(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUPLICATE_THREADS);
    struct Shared {
        SumShared<uint64, THREADS> before, visible, step;
    };
    SHARED(Shared, shared);
    uint64 first_instance = count_before<THREADS>(p, 0, shared.before);
    const uint64 n_visible = count_before<THREADS>(p, 1, shared.visible);
    if (thread_rank() == 0 && block_rank() == n_blocks() - 1) {
        *p.n_instances = first_instance + p.block_counts[2 * block_rank()];
        *p.n_visible = n_visible + p.block_counts[2 * block_rank() + 1];
    }

    const Share share = share_of_block(p.n_splats, THREADS);
    for (uint32 step = share.begin; step < share.end; step += THREADS) {
        Emission e = {};
        e.splat = step + thread_rank();
        e.n_tiles = e.splat < share.end ? p.splat_n_tiles[e.splat] : 0;
        uint64 n_step;
        e.first_instance = first_instance + block_exclusive_sum<uint64, THREADS>(e.n_tiles, n_step, shared.step);
        if (e.n_tiles > 0) {
            e.footprint = Cull::read(p, e.splat);
            e.depth = p.splat_depths[e.splat];
        }
        emit<Key, Cull>(p, e);
        first_instance += n_step;
        block_sync(); // shared.step is written again
    }
}

// --- key split: visible splats first, to be sorted by depth; then their instances in that order ---

// Packs the visible splats together, in their order, with the bits of their depth.
DEVICE void compact(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUPLICATE_THREADS);
    struct Shared {
        SumShared<uint64, THREADS> before, step;
    };
    SHARED(Shared, shared);
    uint64 first = count_before<THREADS>(p, 1, shared.before);
    if (thread_rank() == 0 && block_rank() == n_blocks() - 1)
        *p.n_visible = first + p.block_counts[2 * block_rank() + 1];

    const Share share = share_of_block(p.n_splats, THREADS);
    for (uint32 step = share.begin; step < share.end; step += THREADS) {
        const uint32 splat = step + thread_rank();
        const bool visible = splat < share.end && p.splat_n_tiles[splat] > 0;
        uint64 n_step;
        const uint64 place = first + block_exclusive_sum<uint64, THREADS>(visible, n_step, shared.step);
        if (visible) {
            p.visible_depths[place] = float_bits(p.splat_depths[splat]);
            p.visible_splats_unsorted[place] = splat;
        }
        first += n_step;
        block_sync(); // shared.step is written again
    }
}

// Counts the instances of each block's share of the sorted splats.
DEVICE void count_ordered(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUPLICATE_THREADS);
    typedef SumShared<uint64, THREADS> Shared;
    SHARED(Shared, shared);
    uint64 count = 0, total;
    const Share share = share_of_block(uint32(*p.n_visible), THREADS);
    for (uint32 i = share.begin + thread_rank(); i < share.end; i += THREADS) count += p.splat_n_tiles[p.visible_splats[i]];
    block_exclusive_sum<uint64, THREADS>(count, total, shared);
    if (thread_rank() == 0) p.block_counts[2 * block_rank()] = total;
}

template <typename Key, typename Cull> DEVICE void duplicate_ordered(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUPLICATE_THREADS);
    struct Shared {
        SumShared<uint64, THREADS> before, step;
    };
    SHARED(Shared, shared);
    uint64 first_instance = count_before<THREADS>(p, 0, shared.before);
    if (thread_rank() == 0 && block_rank() == n_blocks() - 1)
        *p.n_instances = first_instance + p.block_counts[2 * block_rank()];

    const Share share = share_of_block(uint32(*p.n_visible), THREADS);
    for (uint32 step = share.begin; step < share.end; step += THREADS) {
        const uint32 i = step + thread_rank();
        Emission e = {};
        if (i < share.end) {
            e.splat = p.visible_splats[i];
            e.n_tiles = p.splat_n_tiles[e.splat];
            e.footprint = Cull::read(p, e.splat);
        }
        uint64 n_step;
        e.first_instance = first_instance + block_exclusive_sum<uint64, THREADS>(e.n_tiles, n_step, shared.step);
        emit<Key, Cull>(p, e);
        first_instance += n_step;
        block_sync(); // shared.step is written again
    }
}

} // namespace edgegs
