# A virtual camera: the kernel module v4l2loopback. It is compiled for the kernel that runs, so that its headers must be
# there before anything is made.
# shellcheck shell=bash

LOOPBACK_OPTIONS=/etc/modprobe.d/edgegs-v4l2loopback.conf

has_module() { modinfo "$1" >/dev/null 2>&1; }

virtual_camera() {
    local kernel headers
    if [ "$LOOPBACK" = no ] && [ ! -e "$R$LOOPBACK_OPTIONS" ]; then
        say "none asked for (--v4l2loopback)"
        return 0
    fi
    kernel=$(uname -r)
    if has_module v4l2loopback; then
        say "unchanged: the module is here for $kernel"
    else
        headers=linux-headers-$kernel
        [ "$TEGRA" = no ] || headers=nvidia-l4t-kernel-headers
        if [ ! -e "$R/lib/modules/$kernel/build/Makefile" ]; then
            apt_install "headers of the kernel, which the module is compiled with" "$headers"
            [ "$DRY" = yes ] || [ -e "$R/lib/modules/$kernel/build/Makefile" ] ||
                die "no headers of kernel $kernel (/lib/modules/$kernel/build)" \
                    "a kernel newer than its headers: sudo apt upgrade, reboot; a kernel of your own: its headers; or leave --v4l2loopback out"
        fi
        apt_install "the module, compiled for each kernel by dkms" v4l2loopback-dkms
        [ "$DRY" = yes ] || has_module v4l2loopback ||
            die "v4l2loopback was not built for kernel $kernel" \
                "dkms status; tail /var/lib/dkms/v4l2loopback/*/build/make.log; or leave --v4l2loopback out"
    fi
    put "one camera, found by its label; browsers want exclusive_caps" "$LOOPBACK_OPTIONS" 0644 root:root <<'END'
options v4l2loopback devices=1 video_nr=10 card_label=edgegs exclusive_caps=1
END
    modules_load
    if [ ! -d "$R/sys/module/v4l2loopback" ]; then
        run "load it now" modprobe v4l2loopback ||
            die "the module cannot be loaded" "dmesg | tail (with Secure Boot: mokutil --import /var/lib/dkms/mok.pub, reboot)"
    elif ! cat "$R"/sys/class/video4linux/*/name 2>/dev/null | grep -qx edgegs; then
        warn "v4l2loopback is loaded with other options: sudo modprobe -r v4l2loopback && sudo modprobe v4l2loopback, or reboot"
    fi
}
