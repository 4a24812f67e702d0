/* A library to preload (LD_PRELOAD): makes /dev/videoN behave as v4l2loopback does, for one process.
 *
 * $V4L2_STAND_IN is a folder:
 *   dev/videoN      the device: there while it is plugged in; its lines, "key=value", say what it is (struct settings;
 *                   major: another kind of device)
 *   faults/videoN   lines that make calls fail: open_errno, ioctl_errno, write_errno (after fail_after frames), eintr
 *                   (how often, first), short (bytes taken of a frame)
 *   frames/videoN   what the last write delivered
 *   log             every call, in order
 *
 * The state of a device, and with it the rules for its format, lives as long as the process. "version=12" follows the
 * driver's releases 0.12 and 0.13, "version=15" those from 0.14 on. Anything else is passed on to the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "v4l2_stand_in_driver.h"

#define DEVICES 64
#define OPENERS 32

static struct device devices[DEVICES];
static struct opener openers[OPENERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *root(void) { return getenv("V4L2_STAND_IN"); }

static void path_of(char *path, size_t size, const char *folder, int number) {
    snprintf(path, size, "%s/%s/video%d", root(), folder, number);
}

static void say(const char *form, ...) {
    char line[256], path[512];
    va_list arguments;
    va_start(arguments, form);
    int length = vsnprintf(line, sizeof line - 1, form, arguments);
    va_end(arguments);
    line[length++] = '\n';
    snprintf(path, sizeof path, "%s/log", root());
    int fd = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (REAL(write)(fd, line, length) != length) abort();
    REAL(close)(fd);
}

/* The value of a key in a small file of "key=value" lines, or NULL. */
static const char *look_up(const char *folder, int number, const char *key, char *value, size_t size) {
    char path[512], text[2048];
    path_of(path, sizeof path, folder, number);
    int fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    ssize_t length = read(fd, text, sizeof text - 1);
    REAL(close)(fd);
    text[length < 0 ? 0 : length] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t n = strlen(key);
        if (!strncmp(line, key, n) && line[n] == '=') {
            snprintf(value, size, "%s", line + n + 1);
            return value;
        }
    }
    return NULL;
}

static long number_in(const char *folder, int number, const char *key, long otherwise) {
    char value[64];
    return look_up(folder, number, key, value, sizeof value) ? strtol(value, NULL, 0) : otherwise;
}

static long fault(int number, const char *key) { return number_in("faults", number, key, 0); }

static struct opener *opener_of(int fd) {
    for (int i = 0; i < OPENERS; i++)
        if (openers[i].fd == fd + 1) return &openers[i];
    return NULL;
}

/* ---- open and close ------------------------------------------------------------------------------------- */

static int open_device(int number, int flags) {
    char path[512];
    struct stat found;
    path_of(path, sizeof path, "dev", number);
    int fd = -1;
    long wrong = fault(number, "open_errno");
    if (wrong) {
        errno = wrong;
    } else {
        fd = REAL(open)(path, (flags & (O_CLOEXEC | O_NONBLOCK)) | O_RDWR);
    }
    if (fd < 0) {
        int error = errno;
        say("open video%d -> errno %d", number, error);
        errno = error;
        return -1;
    }
    say("open video%d%s", number, (flags & O_ACCMODE) != O_RDWR ? " not RDWR" : flags & O_NONBLOCK ? " NONBLOCK" : "");
    struct device *device = &devices[number];
    fstat(fd, &found);
    if (!device->known || device->dev != found.st_dev || device->ino != found.st_ino ||
        device->mtime.tv_sec != found.st_mtim.tv_sec || device->mtime.tv_nsec != found.st_mtim.tv_nsec) {
        memset(device, 0, sizeof *device);
        device->known = 1;
        device->dev = found.st_dev;
        device->ino = found.st_ino;
        device->mtime = found.st_mtim;
        start(device, number);
    }
    device->openers++;
    for (int i = 0; i < OPENERS; i++)
        if (!openers[i].fd) {
            openers[i] = (struct opener){fd + 1, number, 0};
            return fd;
        }
    abort();
}

static void close_device(struct opener *opener) {
    struct device *device = &devices[opener->number];
    say("close video%d", opener->number);
    device->openers--;
    if (!device->openers && !device->settings.keep_format) device->ready_for_capture = device->buffer_size = 0;
    if (opener->writer) device->ready_for_output = 1;
    if (device->output_owner == opener->fd) device->output_owner = 0;
    if (device->streamer == opener->fd) device->streamer = 0;
    opener->fd = 0;
}

/* ---- ioctl ---------------------------------------------------------------------------------------------- */

static int answer(struct opener *opener, unsigned long request, void *argument) {
    struct device *device = &devices[opener->number];
    struct stat now;
    unsigned width, height, code;
    long wrong = fault(opener->number, "ioctl_errno");
    if (fstat(opener->fd - 1, &now) || !now.st_nlink) return ENODEV;
    if (!*device->settings.driver) return ENOTTY;
    if (wrong) return wrong;
    switch (request) {
    case VIDIOC_QUERYCAP:
        say("QUERYCAP");
        return querycap(device, opener->number, argument);
    case VIDIOC_S_FMT:
        return s_fmt(device, opener, argument);
    case VIDIOC_S_PARM:
        return s_parm(device, argument);
    case VIDIOC_STREAMON: {
        int error = stream_on(device, opener, *(int *)argument);
        say("STREAMON type=%d -> errno %d", *(int *)argument, error);
        return error;
    }
    case VIDIOC_ENUM_FMT: {
        struct v4l2_fmtdesc *description = argument;
        return nth_format(device, description->index, 0, &width, &height, &description->pixelformat);
    }
    case VIDIOC_ENUM_FRAMESIZES: {
        struct v4l2_frmsizeenum *size = argument;
        size->type = V4L2_FRMSIZE_TYPE_DISCRETE;
        return nth_format(device, size->index, size->pixel_format, &size->discrete.width, &size->discrete.height,
                          &code);
    }
    default:
        say("ioctl %lx", request);
        return ENOTTY;
    }
}

/* ---- write ---------------------------------------------------------------------------------------------- */

static ssize_t deliver(struct opener *opener, const void *data, size_t size) {
    struct device *device = &devices[opener->number];
    int number = opener->number;
    char path[512];
    struct stat now;
    long wrong = fault(number, "write_errno");
    if (fstat(opener->fd - 1, &now) || !now.st_nlink) return -ENODEV;
    if (device->interrupted < fault(number, "eintr")) return device->interrupted++, -EINTR;
    if (wrong && device->frames >= fault(number, "fail_after")) return -wrong;
    if (device->settings.version < 14) {
        device->ready_for_output = 0;
        if (!device->ready_for_capture) {
            if (!device->buffer_size) return -EINVAL;
            device->ready_for_capture = 1;
        }
    } else {
        if (device->streamer && device->streamer != opener->fd) return -EBUSY;
        if (device->output_owner != opener->fd) return -EBUSY;
        device->streamer = opener->fd;
    }
    if (size > (size_t)device->buffer_size) size = device->buffer_size;
    if (fault(number, "short")) size = fault(number, "short");
    path_of(path, sizeof path, "frames", number);
    int fd = REAL(open)(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ssize_t written = REAL(write)(fd, data, size);
    REAL(close)(fd);
    device->frames++;
    return written;
}

/* ---- what replaces the C library's -------------------------------------------------------------------------- */

static int number_of(const char *path) {
    int number = -1, end = 0;
    if (!root() || sscanf(path, "/dev/video%d%n", &number, &end) != 1 || path[end]) return -1;
    return number >= 0 && number < DEVICES ? number : -1;
}

#define OPEN(name, before, arguments)                              \
    int name(before const char *path, int flags, ...) {            \
        va_list more;                                              \
        va_start(more, flags);                                     \
        int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0; \
        va_end(more);                                              \
        int number = number_of(path);                              \
        if (number < 0) return REAL(name) arguments;               \
        pthread_mutex_lock(&lock);                                 \
        int fd = open_device(number, flags);                       \
        pthread_mutex_unlock(&lock);                               \
        return fd;                                                 \
    }
#define FOLDER int folder,
OPEN(open, , (path, flags, mode))
OPEN(open64, , (path, flags, mode))
OPEN(openat, FOLDER, (folder, path, flags, mode))
OPEN(openat64, FOLDER, (folder, path, flags, mode))

/* Programs that were built for a C library before 2.33 call the last two. */
#define STAT(name, before, type, arguments)                                       \
    int name(before const char *path, struct type *found) {                       \
        int number = number_of(path);                                             \
        char real[512];                                                           \
        if (number < 0) return REAL(name) arguments;                              \
        path_of(real, sizeof real, "dev", number);                                \
        path = real;                                                              \
        if (REAL(name) arguments) return -1;                                      \
        found->st_mode = S_IFCHR | 0660;                                          \
        found->st_rdev = makedev(number_in("dev", number, "major", 81), number);  \
        return 0;                                                                 \
    }
#define VERSION int version,
STAT(stat, , stat, (path, found))
STAT(stat64, , stat64, (path, found))
STAT(__xstat, VERSION, stat, (version, path, found))
STAT(__xstat64, VERSION, stat64, (version, path, found))

int close(int fd) {
    pthread_mutex_lock(&lock);
    struct opener *opener = root() ? opener_of(fd) : NULL;
    if (opener) close_device(opener);
    pthread_mutex_unlock(&lock);
    return REAL(close)(fd);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    pthread_mutex_lock(&lock);
    struct opener *opener = root() ? opener_of(fd) : NULL;
    int error = opener ? answer(opener, (unsigned int)request, argument) : 0;
    pthread_mutex_unlock(&lock);
    if (!opener) return REAL(ioctl)(fd, request, argument);
    errno = error;
    return error ? -1 : 0;
}

ssize_t write(int fd, const void *data, size_t size) {
    pthread_mutex_lock(&lock);
    struct opener *opener = root() ? opener_of(fd) : NULL;
    ssize_t written = opener ? deliver(opener, data, size) : 0;
    if (opener) {
        int number = opener->number;
        if (written < 0) say("write video%d %zu -> errno %d", number, size, (int)-written);
        else say("write video%d %zu -> %zd", number, size, written);
    }
    pthread_mutex_unlock(&lock);
    if (!opener) return REAL(write)(fd, data, size);
    if (written >= 0) return written;
    errno = -written;
    return -1;
}
