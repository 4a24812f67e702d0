// How a kernel is found and where its thread is: shared by both host builds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgegs {
namespace host {

// Where the running thread (a fiber in host-check) is in its launch.
struct Here {
    unsigned block;
    unsigned n_blocks;
    int thread;
};
extern thread_local Here *here __attribute__((tls_model("initial-exec")));

// Registered by KERNEL before main; a linked list, since there are a dozen.
struct KernelEntry {
    typedef void (*Body)(const void *params);
    KernelEntry(const char *name, int threads, size_t params_size, Body body);
    const char *name;
    int threads;
    size_t params_size;
    Body body;
    const KernelEntry *next;
};

enum CollectiveKind { NONE, BLOCK_SYNC, BLOCK_ALL, WARP_SYNC, WARP_BALLOT, WARP_SHUFFLE_UP, WARP_SHUFFLE, EXIT };

struct Site {
    CollectiveKind kind;
    int line;
    const char *file;
};

// host-check only (fibers.cpp): waits until the whole warp or block has come to the same site.
uint64_t collective(Site site, uint64_t value, int distance = 0);
void *shared_memory(size_t size);

// Runs one block of a kernel; false and a message when its threads broke the rules.
bool run_block(const KernelEntry &kernel, unsigned block, unsigned n_blocks, const void *params, char *error,
               size_t error_size);
// host-check: order of the fibers; 0 is natural, anything else seeds a shuffle.
extern uint64_t shuffle_seed;

} // namespace host
} // namespace edgegs
