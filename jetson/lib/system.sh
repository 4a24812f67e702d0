# User, folders, configuration, unit, udev: what the system has to know.
# shellcheck shell=bash

UNITS=/etc/systemd/system
DROPINS=$UNITS/edgegs.service.d
#: groups by which device nodes (video, render) and jtop's socket are given away
GROUPS_WANTED='video render jtop'

user_and_folders() {
    local group missing=()
    put "the service's user, as systemd makes it" /etc/sysusers.d/edgegs.conf 0644 root:root <"$SOURCE/systemd/edgegs.sysusers"
    if getent passwd edgegs >/dev/null && getent group edgegs >/dev/null; then
        say "unchanged: user edgegs"
    elif has systemd-sysusers && [ -z "$R" ]; then
        run "a user for the service" systemd-sysusers /etc/sysusers.d/edgegs.conf ||
            die "systemd-sysusers cannot make the user edgegs" "useradd --system --user-group edgegs"
    else
        run "a user for the service" useradd --system --user-group --home-dir /var/lib/edgegs --no-create-home \
            --shell /usr/sbin/nologin --comment "edgegs daemon" edgegs ||
            die "useradd cannot make the user edgegs" "is /etc writable? is there a group edgegs without a user? groupdel edgegs"
    fi
    for group in $(groups_here); do
        case " $(id -nG edgegs 2>/dev/null || true) " in *" $group "*) ;; *) missing+=("$group") ;; esac
    done
    if [ ${#missing[@]} -gt 0 ]; then
        RESTART=yes
        run "its way to GPU, cameras and sensors" usermod -aG "$(IFS=,; printf '%s' "${missing[*]}")" edgegs
    fi
    folder "$PREFIX/install" 0755 root:root
    folder /etc/edgegs 0750 root:edgegs
    folder /var/lib/edgegs 0750 edgegs:edgegs
    folder /var/lib/edgegs/scenes 0750 edgegs:edgegs
    folder /var/lib/edgegs/runs 0750 edgegs:edgegs
    folder /var/cache/edgegs 0755 edgegs:edgegs
}

#: groups_here: those of GROUPS_WANTED that this machine has; one that it lacks would keep the unit from starting
groups_here() {
    local group all
    all=$'\n'$(getent group)
    for group in $GROUPS_WANTED; do
        case $all in *$'\n'"$group:"*) printf '%s\n' "$group" ;; esac
    done
}

configuration() {
    local config=${CONFIG:-$HERE/edgegs.yaml}
    if [ -n "$CONFIG" ] && [ "$DRY" = no ]; then
        "${BUILD_ENV[@]}" ${PRELOAD:+"LD_PRELOAD=$PRELOAD"} "$R$VENV/bin/edgegs" check-config "$CONFIG" >&2 ||
            die "$CONFIG is no configuration that edgegs can use" "mend what is named above"
    fi
    settle mine /etc/edgegs/edgegs.yaml 0640 root:edgegs <"$config"
    environment_file | settle ours /etc/edgegs/environment 0640 root:edgegs
}

environment_file() {
    printf '# The environment of the service edgegs, written by its installer. Lines of your own may follow.\n'
    printf 'PATH=%s\n' "$(service_path)"
    if needs_coretype; then printf 'OPENBLAS_CORETYPE=ARMV8\n'; fi
    [ -z "$PRELOAD" ] || printf 'LD_PRELOAD=%s\n' "$PRELOAD"
}

#: settle mine|ours PATH MODE OWNER < CONTENT: a file that people edit. It is never overwritten: what is new in this
#: version is put beside it as .new, once. `ours`: the installer's own words are brought up to date where nobody edited.
settle() {
    local whose=$1 path=$2 shipped=$STATE/${2##*/} content
    shift
    IFS= read -r -d '' content || true
    if [ ! -e "$R$path" ] || same "$content" "$R$path"; then
        printf '%s' "$content" | put "first" "$@"
    elif [ "$whose" = ours ] && [ -e "$shipped" ] && cmp -s "$shipped" "$R$path"; then
        printf '%s' "$content" | put "up to date" "$@"
    elif same "$content" "$shipped"; then
        say "kept: $path (yours)"
        return 0
    else
        say "kept: $path (yours)"
        printf '%s' "$content" | put "what this version would write, to compare" "$path.new" "$2" "$3"
        PUT=no # the service does not read it
    fi
    [ "$PUT" = no ] || RESTART=yes
    if [ "$DRY" = no ] && ! same "$content" "$shipped"; then
        mkdir -p -- "$STATE"
        printf '%s' "$content" >"$shipped"
    fi
}

#: ship WHY SOURCE PATH: a file of ../systemd, for the service to take up
ship() {
    put "$1" "$3" 0644 root:root <"$SOURCE/systemd/$2"
    [ "$PUT" = no ] || RESTART=yes
}

service_files() {
    sed "s#/opt/edgegs/venv#$VENV#" "$SOURCE/systemd/edgegs.service" | put "the unit" "$UNITS/edgegs.service" 0644 root:root
    [ "$PUT" = no ] || RESTART=yes
    board_dropin | put "what this machine has" "$DROPINS/10-board.conf" 0644 root:root
    [ "$PUT" = no ] || RESTART=yes
    ship_if "$TEGRA" "a Jetson's devices" tegra.conf 20-tegra.conf
    ship_if "$(systemd_from 254 9999)" "a growing pause between restarts" backoff.conf 30-backoff.conf
    ship_if "$(systemd_from 1 238)" "system calls, for a systemd that lacks @system-service" old-systemd.conf 30-old-systemd.conf
    ship_if "$(asked "$KIOSK" 40-kiosk.conf)" "the screen" kiosk.conf 40-kiosk.conf
    ship_if "$(asked "$CSI" 40-csi.conf)" "the CSI camera" csi.conf 40-csi.conf
    [ "$(asked "$KIOSK" 40-kiosk.conf)" = no ] || screen_permission
    ship "folders, also for roots whose /var is empty at boot" edgegs.tmpfiles /etc/tmpfiles.d/edgegs.conf
    put "power sensors for the service" /etc/udev/rules.d/70-edgegs.rules 0644 root:root <"$SOURCE/systemd/70-edgegs.rules"
    if [ "$PUT" = yes ] && [ -e "$R/run/udev/control" ] && has udevadm; then
        run "read the rules" udevadm control --reload || warn "udev does not answer: the rules hold from the next boot"
        run "apply them" udevadm trigger --subsystem-match=iio --subsystem-match=hwmon --subsystem-match=powercap ||
            warn "udev does not answer: the rules hold from the next boot"
    fi
    modules_load
    program_link
}

#: systemd_from FIRST LAST: whether the release lies there
systemd_from() {
    if [ -n "$SYSTEMD" ] && [ "$SYSTEMD" -ge "$1" ] && [ "$SYSTEMD" -le "$2" ]; then printf yes; else printf no; fi
}

#: asked yes|no DROPIN: what was asked for once stays
asked() { if [ "$1" = yes ] || [ -e "$R$DROPINS/$2" ]; then printf yes; else printf no; fi; }

ship_if() { # yes|no WHY SOURCE DROPIN
    if [ "$1" = yes ]; then
        ship "$2" "$3" "$DROPINS/$4"
    elif [ -e "$R$DROPINS/$4" ]; then
        drop "not for this machine" "$DROPINS/$4"
        RESTART=yes
    fi
}

board_dropin() {
    local node groups
    groups=$(groups_here | tr '\n' ' ')
    printf '# Written by install.sh for this machine: groups that exist here, device nodes that the unit does not name.\n'
    printf '[Service]\nSupplementaryGroups=%s\n' "${groups% }"
    for node in "$R"/dev/nvhost-* "$R"/dev/nvgpu/*/*; do
        [ -e "$node" ] || continue
        node=${node#"$R"}
        grep -qxF "DeviceAllow=$node rw" "$SOURCE/systemd/tegra.conf" || printf 'DeviceAllow=%s rw\n' "$node"
    done
}

#: The X server of whoever is logged in lets the service draw.
screen_permission() {
    put "the user on the screen lets edgegs draw, and the screen stays on" /etc/xdg/autostart/edgegs-display.desktop \
        0644 root:root <<'END'
[Desktop Entry]
Type=Application
Name=edgegs on this screen
Exec=sh -c "xhost +si:localuser:edgegs; xset s off -dpms"
NoDisplay=true
X-GNOME-Autostart-enabled=true
END
    [ "$PUT" = no ] || say "for a kiosk, switch on automatic login of a desktop user, and log in once more"
}

#: Modules at boot: those of the list that this machine has, because a missing one fails systemd-modules-load.
modules_load() {
    local module lines=''
    while read -r module; do
        case $module in
            '' | '#'*) continue ;;
            nvidia-uvm) if [ "$CUDA" = no ] || [ "$TEGRA" = yes ]; then continue; fi ;;
            v4l2loopback) if [ "$LOOPBACK" = no ] && [ ! -e "$R$LOOPBACK_OPTIONS" ]; then continue; fi ;;
        esac
        if has_module "$module"; then lines+=$module$'\n'; fi
    done <"$SOURCE/systemd/edgegs.modules-load"
    if [ -n "$lines" ]; then
        printf '%s' "$lines" | put "modules at boot" /etc/modules-load.d/edgegs.conf 0644 root:root
    else
        drop "no module is needed" /etc/modules-load.d/edgegs.conf
    fi
    if [[ $lines == *nvidia-uvm* ]] && [ ! -e "$R/dev/nvidia-uvm" ]; then
        run "CUDA's device, now" modprobe nvidia-uvm || warn "nvidia-uvm cannot be loaded: CUDA will not start"
        ! has nvidia-modprobe || run "… and its node" nvidia-modprobe -c0 -u || true
    fi
}

#: /usr/local/bin/edgegs, unless somebody else's is there
program_link() {
    local link=/usr/local/bin/edgegs
    if [ "$(readlink "$R$link" 2>/dev/null)" = "$VENV/bin/edgegs" ]; then
        say "unchanged: $link"
    elif [ -e "$R$link" ] || [ -L "$R$link" ]; then
        warn "$link is another one: the service uses $VENV/bin/edgegs"
    else
        mkdir_for_link "$link"
        run "the command edgegs" ln -s "$VENV/bin/edgegs" "$R$link"
    fi
}

mkdir_for_link() { [ "$DRY" = yes ] || mkdir -p -- "$(dirname -- "$R$1")"; }

service() {
    if [ "$SERVICE" = no ]; then
        say "--no-service: later sudo systemctl enable --now edgegs"
        return 0
    fi
    if ! has systemctl; then
        warn "no systemctl here: start edgegs yourself: $VENV/bin/edgegs run /etc/edgegs/edgegs.yaml"
        return 0
    fi
    if [ "$SYSTEMD_RUNS" = yes ] && [ "$RESTART" = yes ]; then
        run "read the unit" systemctl daemon-reload
    fi
    if systemctl is-enabled --quiet edgegs.service 2>/dev/null; then
        say "unchanged: starts at boot"
    else
        run "start at boot" systemctl enable edgegs.service || die "the unit cannot be enabled" "systemctl status edgegs"
    fi
    if [ "$SYSTEMD_RUNS" = no ]; then
        say "systemd does not run here (a container, or another root): the service starts at the next boot"
    elif [ "$RESTART" = no ] && systemctl is-active --quiet edgegs.service; then
        say "unchanged: it runs"
    else
        run "start it, and wait for the first frame" systemctl restart edgegs.service ||
            die "the service does not come up" "journalctl -u edgegs -n 50; $VENV/bin/edgegs check-config /etc/edgegs/edgegs.yaml"
    fi
}
