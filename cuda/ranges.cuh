// Stage 4, ranges: one thread a tile finds the tile's first instance by binary search in the sorted keys
// (one more thread finds the end of the last). A few thousand searches read far less than a pass over all keys,
// and nothing has to be cleared before.
#pragma once

namespace edgegs {

template <typename Key> DEVICE void ranges(const FrameParams &p) {
    const typename Key::Type *keys = (const typename Key::Type *)p.instance_keys;
    const uint32 n_tiles = p.n_tiles_x * p.n_tiles_y;
    const uint64 counted = *p.n_instances;
    const uint32 n_instances = uint32(counted < p.instance_capacity ? counted : p.instance_capacity);
    const uint32 thread = block_rank() * block_threads(RANGES_THREADS) + thread_rank();
    const uint32 n_threads = n_blocks() * block_threads(RANGES_THREADS);
    for (uint32 tile = thread; tile <= n_tiles; tile += n_threads) {
        uint32 begin = 0, end = n_instances;
        while (begin < end) {
            const uint32 middle = begin + (end - begin) / 2;
            if (Key::tile(p, keys[middle]) < tile)
                begin = middle + 1;
            else
                end = middle;
        }
        p.tile_starts[tile] = begin;
    }
    if (p.block_chain) clear_chain(p, thread, n_threads, p.n_links);
}

} // namespace edgegs
