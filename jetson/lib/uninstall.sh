# Takes away what install.sh put there.
# shellcheck shell=bash

uninstall() {
    local file packages=''
    step "stop the service"
    if has systemctl && [ -e "$R$UNITS/edgegs.service" ]; then
        if [ -d "$R/run/systemd/system" ]; then
            run "stop it" systemctl stop edgegs.service || warn "it does not stop: systemctl kill -s KILL edgegs"
        fi
        run "not at boot" systemctl disable edgegs.service || true
    fi
    step "remove the service's files"
    for file in "$UNITS/edgegs.service" "$DROPINS" "$UNITS/multi-user.target.wants/edgegs.service" \
        /etc/udev/rules.d/70-edgegs.rules /etc/tmpfiles.d/edgegs.conf /etc/sysusers.d/edgegs.conf \
        /etc/modules-load.d/edgegs.conf "$LOOPBACK_OPTIONS" /etc/xdg/autostart/edgegs-display.desktop; do
        drop "put there by the installer" "$file"
    done
    if has systemctl && [ -d "$R/run/systemd/system" ]; then
        run "read the units" systemctl daemon-reload || true
        run "no memory of a failure" systemctl reset-failed edgegs.service 2>/dev/null || true
    fi
    step "remove swap"
    if [ -e "$STATE/swap" ] && [ -e "$R$SWAPFILE" ]; then
        if text /proc/swaps | grep -q "^$SWAPFILE "; then
            run "do not use it" swapoff "$R$SWAPFILE" ||
                die "swap cannot be switched off: what lies in it does not fit into memory" "close programs, or reboot"
        fi
        text /etc/fstab | { grep -v "^$SWAPFILE " || true; } | put "not at boot" /etc/fstab 0644 root:root
        drop "the swap file" "$SWAPFILE"
    else
        say "none was made"
    fi
    step "remove the program and its kernels"
    [ ! -e "$STATE/packages" ] || packages=$(tr '\n' ' ' <"$STATE/packages")
    if [ "$(readlink "$R/usr/local/bin/edgegs" 2>/dev/null)" = "$VENV/bin/edgegs" ]; then
        drop "the command" /usr/local/bin/edgegs
    fi
    for file in venv build tmp install; do drop "the program" "$PREFIX/$file"; done
    if [ -d "$R$PREFIX" ]; then
        run "its folder, if nothing else is in it" rmdir "$R$PREFIX" || warn "$PREFIX holds other files: it stays"
    fi
    drop "kernels" /var/cache/edgegs
    purge_or_keep
    [ -z "$packages" ] || say "packages that were installed stay; to remove them: sudo apt-get remove $packages"
}

purge_or_keep() {
    step "configuration, scenes, runs"
    if [ "$PURGE" = no ]; then
        say "kept: /etc/edgegs, /var/lib/edgegs, user edgegs (--purge removes them)"
        return 0
    fi
    drop "configuration (--purge)" /etc/edgegs
    drop "scenes and runs (--purge)" /var/lib/edgegs
    if getent passwd edgegs >/dev/null; then
        run "the user (--purge)" userdel edgegs || warn "the user edgegs stays: processes of it run (pgrep -u edgegs)"
    fi
}
