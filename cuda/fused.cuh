// Stages 1 and 2 in one kernel (key packed32, after RoofGS): a block projects PROJECT_THREADS splats, adds up their
// tiles, learns where its instances begin, and emits them; no rectangle or count goes through memory.
// Where it begins: blocks hand on running sums through `block_chain` (decoupled look-back, Merrill & Garland 2016),
// so instances stand in the order of the splats whichever block is first, and the same view gives the same bytes;
// one atomic addition a block would be shorter, but its order is chance. A block waits only for blocks with
// lower tickets, which have started: tickets are drawn at the start. The last block leaves the chain cleared.
#pragma once

namespace edgegs {

// A link of the chain: 2 bits of state, 25 of visible splats, 37 of instances.
constexpr uint64 LINK_OWN = 1ull << 62;   // the block's own sums
constexpr uint64 LINK_TOTAL = 2ull << 62; // the sums of it and all before
constexpr uint64 LINK_SUMS = (1ull << 62) - 1;
constexpr int LINK_VISIBLE_SHIFT = 37;

DEVICE uint64 wait_for_link(const uint64 *link) {
    uint64 value = observe(link);
    while (value == 0) value = observe(link);
    return value;
}

// The sums of all blocks before `ticket`; every lane of the warp calls it and gets them.
DEVICE uint64 sums_before(const FrameParams &p, uint32 ticket) {
    uint64 sums = 0;
    int64 nearest = int64(ticket) - 1;
    while (nearest >= 0) {
        const int64 mine = nearest - lane_rank();
        const uint64 link = mine >= 0 ? wait_for_link(p.block_chain + mine) : LINK_TOTAL;
        const uint32 totals = warp_ballot((link & LINK_TOTAL) != 0);
        // count the links up to and with the nearest total
        const bool counts = totals == 0 || lane_rank() <= lowest_bit(totals);
        uint64 window = counts && mine >= 0 ? link & LINK_SUMS : 0;
        for (int distance = WARP_WIDTH / 2; distance > 0; distance /= 2)
            window += warp_shuffle(window, (lane_rank() + distance) % WARP_WIDTH);
        sums += window;
        if (totals != 0) break; // the same in every lane
        nearest -= WARP_WIDTH;
    }
    return sums;
}

template <typename Key, typename Storage, typename Cull> DEVICE void project_duplicate(const FrameParams &p) {
    constexpr int THREADS = block_threads(PROJECT_THREADS);
    constexpr int ITEMS = PROJECT_THREADS / THREADS; // splats of one thread: 1, or all of the block's in host-fast
    constexpr uint64 INSTANCES = (1ull << LINK_VISIBLE_SHIFT) - 1;
    struct Shared {
        SumShared<uint64, THREADS> step;
        uint32 ticket;
        uint64 before;
    };
    SHARED(Shared, shared);
    if (thread_rank() == 0) shared.ticket = take_ticket(p.block_ticket);
    block_sync();
    const uint32 ticket = shared.ticket;

    Emission mine[ITEMS];
    uint64 link = 0;
    for (int i = 0; i < ITEMS; ++i) {
        Emission &e = mine[i];
        e.splat = ticket * PROJECT_THREADS + i * THREADS + thread_rank();
        e.n_tiles = 0;
        if (e.splat < p.n_splats && project_footprint<Storage, Cull>(p, e.splat, e.footprint, e.depth))
            e.n_tiles = Cull::n_tiles(p, e.footprint);
        link += uint64(e.n_tiles > 0) << LINK_VISIBLE_SHIFT | e.n_tiles;
    }

    uint64 own;
    const uint64 offset = block_exclusive_sum<uint64, THREADS>(link, own, shared.step);
    if (warp_rank() == 0) {
        if (lane_rank() == 0 && ticket > 0) publish(p.block_chain + ticket, LINK_OWN | own);
        warp_sync();
        const uint64 before = sums_before(p, ticket);
        if (lane_rank() == 0) {
            publish(p.block_chain + ticket, LINK_TOTAL | (before + own));
            shared.before = before;
            if (ticket == n_blocks() - 1) {
                *p.n_instances = (before + own) & INSTANCES;
                *p.n_visible = (before + own) >> LINK_VISIBLE_SHIFT;
            }
        }
    }
    block_sync();
    uint64 first_instance = (shared.before + offset) & INSTANCES;
    for (int i = 0; i < ITEMS; ++i) {
        mine[i].first_instance = first_instance;
        emit<Key, Cull>(p, mine[i]);
        first_instance += mine[i].n_tiles;
    }
}

// Clears the chain for the next frame; part of the ranges stage of the variants that fuse.
DEVICE void clear_chain(const FrameParams &p, uint32 thread, uint32 n_threads, uint32 n_links) {
    for (uint32 link = thread; link < n_links; link += n_threads) p.block_chain[link] = 0;
    if (thread == 0) *p.block_ticket = 0;
}

} // namespace edgegs
