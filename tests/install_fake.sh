#!/bin/bash
# Stands for many programs of a made-up machine (install_support.py): records how it was called, and does as little as
# the installer can notice. What stands between @ is filled in.
export PATH=@BIN@
R=@ROOT@ S=@STATE@ name=${0##*/} args="${*//$'\n'/ }"
case $0 in */venv/bin/python) name=venv-python ;; esac
printf '%s %s\n' "$name" "$args" >>"$S/calls"
case "$name $args" in @LOOKS@) look=yes ;; *) look=no ;; esac
if [ "$look" = no ]; then
    [ -z "$OPENBLAS_CORETYPE$LDFLAGS" ] || printf '%s|%s|%s|%s\n' "$name $args" "$OPENBLAS_CORETYPE" "$CUDA_ROOT" "$LDFLAGS" >>"$S/environments"
    # of the many calls of chown the first few are enough
    if [ -e "$S/kill-once" ] && { [ "$name" != chown ] || [ "$(grep -c ^chown "$S/kill-once")" -lt 3 ]; } && ! grep -qxF -- "$name $args" "$S/kill-once"; then
        printf '%s %s\n' "$name" "$args" >>"$S/kill-once"
        case "$args" in '-m venv '*) mkdir -p "${@: -1}/bin" ;; '-l '*) : >"${@: -1}" ;; esac # half done
        kill -9 0
    fi
    if [ -e "$S/fail" ] && grep -qE -- "$(cat "$S/fail")" <<<"$name $args"; then
        echo "c++: fatal error: Killed signal terminated program cc1plus" >&2
        exit 1
    fi
fi
told() { [ -e "$S/$1" ] && printf '%s\n' "$(<"$S/$1")"; }
last=${*: -1}
case $name in
    id) case $1 in -u) told uid || echo 0 ;; -nG) grep -q '^edgegs:' "$R/etc/passwd" || exit 1; told groups-of || echo edgegs ;; esac ;;
    getent) if [ $# = 1 ]; then cat "$R/etc/$1"; else grep "^$2:" "$R/etc/$1"; fi ;;
    useradd) echo "edgegs:x:997:997::/var/lib/edgegs:/usr/sbin/nologin" >>"$R/etc/passwd"; echo "edgegs:x:997:" >>"$R/etc/group" ;;
    userdel) sed -i '/^edgegs:/d' "$R/etc/passwd" "$R/etc/group" ;;
    usermod) echo "edgegs ${2//,/ }" >"$S/groups-of" ;;
    uname) case $1 in -m) told machine ;; -r) told kernel ;; esac ;;
    dpkg-query) sed 's/^/installed /' "$S/packages" ;;
    dpkg) ;;
    apt-get) case $args in *' install '*)
        for word in "$@"; do case $word in -*|install|DPkg*) ;; *) echo "$word" >>"$S/packages" ;; esac; done
        ! grep -qx python3.8 "$S/packages" || ln -sf fake @BIN@/python3.8
        if grep -q kernel-headers "$S/packages"; then
            mkdir -p "$R/lib/modules/$(told kernel)/build" && touch "$R/lib/modules/$(told kernel)/build/Makefile"; fi
        ! grep -qx v4l2loopback-dkms "$S/packages" || echo v4l2loopback >>"$S/modules" ;; esac ;;
    systemctl) case $1 in
        --version) echo "systemd $(told systemd) (test)" ;;
        is-enabled) [ -L "$R/etc/systemd/system/multi-user.target.wants/edgegs.service" ] ;;
        is-active) [ -e "$S/active" ] ;;
        enable) mkdir -p "$R/etc/systemd/system/multi-user.target.wants"
            ln -s ../edgegs.service "$R/etc/systemd/system/multi-user.target.wants/edgegs.service" ;;
        disable) rm -f "$R/etc/systemd/system/multi-user.target.wants/edgegs.service" ;;
        restart) touch "$S/active" ;;
        stop) rm -f "$S/active" ;; esac ;;
    modinfo) grep -qx -- "$last" "$S/modules" ;;
    modprobe) mkdir -p "$R/sys/module/${last//-/_}" ;;
    nvidia-modprobe) mkdir -p "$R/dev"; : >"$R/dev/nvidia-uvm" ;;
    fallocate) : >"$last" ;;
    swapon) printf '%s file 4194300 0 -3\n' "${last#"$R"}" >>"$R/proc/swaps" ;;
    swapoff) sed -i '/swap-edgegs/d' "$R/proc/swaps" ;;
    nvcc) echo "Cuda compilation tools, release $(told nvcc), V0" ;;
    nvidia-smi) told capability ;;
    jtop) told jtop ;;
    gst-inspect-1.0) echo "GStreamer 1.14.5" ;;
    runuser) shift 3; exec "$@" ;;
    python3*) version=${name#python}; [ "$version" != 3 ] || version=$(told python3)
        case $args in
            '-c import sys;'*) echo "$version" ;;
            '-c import cv2;'*) exit 1 ;;
            '-m venv '*) mkdir -p "$last/bin" && echo "$version" >"$last/version" && echo 9.0.1 >"$last/pip" &&
                ln -s @BIN@/fake "$last/bin/python" ;; esac ;;
    venv-python) V=${0%/bin/python}
        case $args in
            '-m pip --version') echo "pip $(cat "$V/pip") from nowhere" ;;
            '-m pip install'*pip?=*) echo 25.0.1 >"$V/pip" ;;
            '-m pip install'*pycuda?=*) touch "$V/pycuda" ;;
            '-m pip install'*/opt/edgegs/build*) ln -sf @BIN@/fake "$V/bin/edgegs"; echo 0.1.0 >"$V/edgegs" ;;
            '-m pip show'*) exit 1 ;;
            '-c import sys; print'*) cat "$V/version" ;;
            '-c from importlib'*) cat "$V/edgegs" ;;
            '-c import pycuda'*) [ -e "$V/pycuda" ] ;;
            '-c import numpy'*) if [ -e "$S/static-tls" ] && [ -z "$LD_PRELOAD" ]; then
                echo "ImportError: /usr/lib/libgomp.so.1: cannot allocate memory in static TLS block" >&2; exit 1; fi ;;
            *json*) exec @PYTHON@ -S -E "$@" ;; esac ;;
    edgegs) case $args in
        'kernels list'*) folder=$R/var/cache/edgegs/kernels images=''
            for arch in $(cat "$folder/built" 2>/dev/null); do
                images+="${images:+,}{\"arch\":\"$arch\",\"current\":true,\"selected\":true,\"path\":\"$folder/$arch\"}"; done
            echo "{\"images\":[$images],\"gpu\":null}" ;;
        'kernels build'*) mkdir -p "$R/var/cache/edgegs/kernels"; echo "$last" >>"$R/var/cache/edgegs/kernels/built" ;;
        'synth '*) echo ply >"$last" ;;
        'check-config '*) ! grep -q wrong "$last" ;; esac ;;
esac
