/* What v4l2loopback's driver keeps for a device and how it answers; see v4l2_stand_in.c. */
#include <errno.h>
#include <linux/videodev2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PAGE_ALIGN(n) (((n) + 4095L) & ~4095L)

struct settings {
    char driver[16], card[32], formats[128], held[32];
    int version, exclusive_caps, keep_format; /* of the driver and the module's options */
    int reader, writer, lost_output;          /* what other processes did before */
    int max_width, max_height;
    unsigned caps, whole, no_device_caps; /* of a device that is no loopback; of its other nodes, too; an old kernel */
};

struct device {
    int known;
    dev_t dev;
    ino_t ino;
    struct timespec mtime;
    struct settings settings;
    int openers, ready_for_capture, ready_for_output; /* 0.12 */
    int output_owner, streamer, capture_owned;        /* 0.15: fd + 1 of the owner, -1 another process, 0 nobody */
    long buffer_size;
    struct v4l2_pix_format format;
    struct v4l2_fract interval;
    int frames, interrupted;
};

struct opener {
    int fd, number, writer;
};

/* Of v4l2_stand_in.c: a line for the log; the value of a key in a device's file. */
static void say(const char *form, ...);
static const char *look_up(const char *folder, int number, const char *key, char *value, size_t size);
static long number_in(const char *folder, int number, const char *key, long otherwise);

/* 0.12: pix_format_set_size; the two formats that a sink may ask for, else RGB of 32 bits. */
static void set_size(struct v4l2_pix_format *format, unsigned width, unsigned height) {
    format->width = width;
    format->height = height;
    if (format->pixelformat == V4L2_PIX_FMT_YUV420) {
        format->bytesperline = width;
        format->sizeimage = (width * height * 12) >> 3;
    } else {
        format->bytesperline = width * (format->pixelformat == V4L2_PIX_FMT_YUYV ? 2 : 4);
        format->sizeimage = height * format->bytesperline;
    }
}

static int is_known(unsigned pixelformat) {
    return pixelformat == V4L2_PIX_FMT_YUYV || pixelformat == V4L2_PIX_FMT_YUV420 || pixelformat == V4L2_PIX_FMT_BGR32;
}

static void start(struct device *device, int number) {
    struct settings *s = &device->settings;
    unsigned width, height;
    char code[5] = "YUYV";
    look_up("dev", number, "driver", s->driver, sizeof s->driver);
    look_up("dev", number, "card", s->card, sizeof s->card);
    look_up("dev", number, "formats", s->formats, sizeof s->formats);
    look_up("dev", number, "held", s->held, sizeof s->held);
    s->version = number_in("dev", number, "version", 12);
    s->exclusive_caps = number_in("dev", number, "exclusive_caps", 0);
    s->keep_format = number_in("dev", number, "keep_format", 0);
    s->reader = number_in("dev", number, "reader", 0);
    s->writer = number_in("dev", number, "writer", 0);
    s->lost_output = number_in("dev", number, "lost_output", 0);
    s->max_width = number_in("dev", number, "max_width", 8192);
    s->max_height = number_in("dev", number, "max_height", 8192);
    s->caps = number_in("dev", number, "caps", 0);
    s->whole = number_in("dev", number, "whole", 0);
    s->no_device_caps = number_in("dev", number, "no_device_caps", 0);
    device->ready_for_output = !s->writer && !s->lost_output;
    device->openers = s->reader + s->writer;
    device->capture_owned = s->reader;
    device->output_owner = device->streamer = s->writer ? -1 : 0;
    if (sscanf(s->held, "%ux%u %4s", &width, &height, code) >= 2) {
        device->format.pixelformat = v4l2_fourcc(code[0], code[1], code[2], code[3]);
        device->format.field = V4L2_FIELD_NONE;
        device->format.colorspace = V4L2_COLORSPACE_SRGB;
        set_size(&device->format, width, height);
        device->buffer_size = PAGE_ALIGN((long)device->format.sizeimage);
        device->ready_for_capture = 1;
    }
}

static int is_loopback(const struct device *device) { return !strcmp(device->settings.driver, "v4l2 loopback"); }

static int querycap(struct device *device, int number, struct v4l2_capability *cap) {
    const struct settings *s = &device->settings;
    unsigned caps = s->caps;
    memset(cap, 0, sizeof *cap);
    snprintf((char *)cap->driver, sizeof cap->driver, "%s", s->driver);
    snprintf((char *)cap->card, sizeof cap->card, "%s", s->card);
    snprintf((char *)cap->bus_info, sizeof cap->bus_info, "platform:v4l2loopback-%03d", number);
    if (is_loopback(device)) {
        caps = V4L2_CAP_STREAMING | V4L2_CAP_READWRITE | (s->version < 14 ? V4L2_CAP_VIDEO_M2M : 0);
        if (!s->exclusive_caps)
            caps |= V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_VIDEO_OUTPUT;
        else if (s->version < 14)
            caps |= (device->ready_for_capture ? V4L2_CAP_VIDEO_CAPTURE : 0) |
                    (device->ready_for_output ? V4L2_CAP_VIDEO_OUTPUT : 0);
        else
            caps |= !device->streamer && !s->keep_format ? V4L2_CAP_VIDEO_OUTPUT : V4L2_CAP_VIDEO_CAPTURE;
    }
    caps |= V4L2_CAP_EXT_PIX_FORMAT; /* the kernel's own addition, as is the device's own set since 3.3 */
    cap->capabilities = s->no_device_caps ? caps : caps | V4L2_CAP_DEVICE_CAPS | s->whole;
    cap->device_caps = s->no_device_caps ? 0 : caps;
    return 0;
}

static int s_fmt_12(struct device *device, struct v4l2_pix_format *pix) {
    const struct settings *s = &device->settings;
    if (device->ready_for_capture) {
        *pix = device->format;
        return 0;
    }
    unsigned width = pix->width > (unsigned)s->max_width ? (unsigned)s->max_width : pix->width;
    unsigned height = pix->height > (unsigned)s->max_height ? (unsigned)s->max_height : pix->height;
    if (!is_known(pix->pixelformat)) pix->pixelformat = V4L2_PIX_FMT_BGR32;
    set_size(pix, width ? width : 640, height ? height : 480);
    pix->colorspace = V4L2_COLORSPACE_SRGB;
    if (pix->field == V4L2_FIELD_ANY) pix->field = V4L2_FIELD_NONE;
    device->format = *pix;
    device->buffer_size = PAGE_ALIGN((long)pix->sizeimage);
    pix->sizeimage = device->buffer_size;
    return 0;
}

static int s_fmt_15(struct device *device, const struct opener *opener, struct v4l2_pix_format *pix) {
    const struct settings *s = &device->settings;
    int mine = device->output_owner == opener->fd;
    if (s->exclusive_caps && device->streamer && !mine) return EINVAL;
    if (!is_known(pix->pixelformat)) return EINVAL;
    unsigned width = pix->width > (unsigned)s->max_width ? (unsigned)s->max_width : pix->width;
    unsigned height = pix->height > (unsigned)s->max_height ? (unsigned)s->max_height : pix->height;
    set_size(pix, width ? width : 640, height ? height : 480);
    if (!pix->colorspace || pix->colorspace > V4L2_COLORSPACE_DCI_P3) pix->colorspace = V4L2_COLORSPACE_SRGB;
    if (pix->field == V4L2_FIELD_ANY) pix->field = V4L2_FIELD_NONE;
    if (s->keep_format || device->capture_owned || (device->output_owner && !mine)) *pix = device->format;
    if (device->output_owner && !mine) return EBUSY;
    device->format = *pix;
    device->buffer_size = PAGE_ALIGN((long)pix->sizeimage);
    device->output_owner = opener->fd;
    return 0;
}

static int s_fmt(struct device *device, const struct opener *opener, struct v4l2_format *format) {
    struct v4l2_pix_format *pix = &format->fmt.pix;
    int error;
    if (pix->priv != V4L2_PIX_FMT_PRIV_MAGIC) /* the kernel, for programs that do not know these fields */
        pix->flags = pix->ycbcr_enc = pix->quantization = pix->xfer_func = 0;
    say("S_FMT type=%u %ux%u %.4s field=%u line=%u size=%u colour=%u/%u/%u/%u", format->type, pix->width, pix->height,
        (const char *)&pix->pixelformat, pix->field, pix->bytesperline, pix->sizeimage, pix->colorspace,
        pix->ycbcr_enc, pix->quantization, pix->xfer_func);
    if (format->type != V4L2_BUF_TYPE_VIDEO_OUTPUT || !is_loopback(device)) return EINVAL;
    error = device->settings.version < 14 ? s_fmt_12(device, pix) : s_fmt_15(device, opener, pix);
    pix->priv = V4L2_PIX_FMT_PRIV_MAGIC;
    return error;
}

static int stream_on(struct device *device, struct opener *opener, int type) {
    if (type != V4L2_BUF_TYPE_VIDEO_OUTPUT || !is_loopback(device)) return EINVAL;
    if (device->settings.version >= 14) return EINVAL; /* no buffers were asked for */
    opener->writer = 1;
    device->ready_for_output = 0;
    if (!device->buffer_size) return EINVAL;
    device->ready_for_capture++;
    return 0;
}

static int s_parm(struct device *device, struct v4l2_streamparm *parm) {
    struct v4l2_fract *interval = &parm->parm.output.timeperframe;
    say("S_PARM type=%u %u/%u", parm->type, interval->numerator, interval->denominator);
    if (parm->type != V4L2_BUF_TYPE_VIDEO_OUTPUT) return EINVAL;
    if (interval->numerator < 1 || interval->denominator < 1) return EINVAL;
    device->interval = *interval;
    return 0;
}

/* The index-th of "YUYV:640x480,MJPG:1280x720,MJPG:1920x1080"; without a wanted one, a format counts once. */
static int nth_format(const struct device *device, unsigned index, unsigned wanted, unsigned *width, unsigned *height,
                      unsigned *code) {
    char text[128], *rest = NULL, letters[5];
    unsigned n = 0, before = 0;
    memcpy(text, device->settings.formats, sizeof text);
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (sscanf(one, "%4s:%ux%u", letters, width, height) != 3 &&
            sscanf(one, "%4[^:]:%ux%u", letters, width, height) != 3)
            return EINVAL;
        *code = v4l2_fourcc(letters[0], letters[1], letters[2], letters[3]);
        if (wanted ? *code != wanted : *code == before) continue;
        before = *code;
        if (n++ == index) return 0;
    }
    return EINVAL;
}
