#!/bin/sh
# Switches a Jetson's power mode and puts back what it found: nvpmodel's mode and jetson_clocks' settings.
#
#   sudo jetson/power-mode.sh --show                 the mode now, and whether something is still to be restored
#   sudo jetson/power-mode.sh --set 1 [--pin]        take mode 1; --pin: its clocks at their highest
#   sudo jetson/power-mode.sh --restore              put back what the first --set found
#   jetson/power-mode.sh --dry-run --set 1           print the commands, run none; needs no root
#   sudo jetson/power-mode.sh --serve                for `edgegs sweep`: reads "set N [pin]" or "set keep [pin]" a line,
#                                                    answers "ok …" or "error …", restores when its input ends
#
# What was found is kept in /var/lib/edgegs-power-mode before anything is changed: nvpmodel keeps its mode over a reboot,
# so after a power cut --restore still has to be run, and is refused by nothing.
#
# Unconfirmed on hardware (tested with stand-ins for nvpmodel and jetson_clocks). To confirm:
#   sudo jetson/power-mode.sh --set 1 && sudo nvpmodel -q && sudo jetson/power-mode.sh --restore && sudo nvpmodel -q
#
# Exit status: 0 done; 1 a step failed, and what was found is still kept; 2 wrong options; 77 this is not root.
set -u
umask 077

#: Tests put another folder before the paths.
STATE=${EDGEGS_POWER_MODE_ROOT:-}/var/lib/edgegs-power-mode
#: nvpmodel waits for clocks and may hang; nobody should wait longer for it, seconds.
LIMIT=60
DRY=no PIN=no ACTION='' MODE=''

say() { printf 'power-mode: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }

usage_error() {
    say "$* (see --help)"
    exit 2
}

#: act COMMAND…: show it, and (but for a dry run) do it. Never with a terminal: both tools may ask, and one to reboot.
act() {
    say "\$ $*"
    [ "$DRY" = no ] || return 0
    timeout "$LIMIT" "$@" </dev/null >&2
}

is_number() {
    case $1 in
        '' | *[!0-9]* | ???*) return 1 ;;
    esac
}

#: nvpmodel -q ends with the mode's number on a line of its own
current_mode() {
    timeout "$LIMIT" nvpmodel -q </dev/null 2>/dev/null | sed -n 's/^[[:space:]]*\([0-9]\{1,2\}\)[[:space:]]*$/\1/p' | tail -n 1
}

#: remember: keep what is there now, unless something is kept already. Sets PROBLEM when that fails.
remember() {
    [ ! -e "$STATE/mode" ] || return 0
    old=$(current_mode)
    if ! is_number "$old" && [ "$DRY" = yes ]; then
        say "the mode now is not known (nvpmodel -q may need root)"
        return 0
    fi
    if ! is_number "$old"; then
        PROBLEM="nvpmodel -q names no mode; is this a Jetson, and does \`sudo nvpmodel -q\` work?"
        return 1
    fi
    say "found mode $old; kept in $STATE, to be restored"
    [ "$DRY" = no ] || return 0
    if ! mkdir -p "$STATE"; then
        PROBLEM="$STATE cannot be made; is the disk full or read-only?"
        return 1
    fi
    # jetson_clocks asks before it writes over a file, so there must be none
    rm -f "$STATE/clocks" "$STATE/pinned" "$STATE/mode.new"
    if has jetson_clocks && ! act jetson_clocks --store "$STATE/clocks"; then
        PROBLEM="jetson_clocks --store failed; nothing was changed"
        return 1
    fi
    # the mode last, whole and on the disk: that file is what says that all is kept
    if ! { printf '%s\n' "$old" >"$STATE/mode.new" && sync && mv "$STATE/mode.new" "$STATE/mode" && sync; }; then
        PROBLEM="$STATE cannot be written; is the disk full? Nothing was changed"
        return 1
    fi
}

#: unpin: put back the clocks that a mode had before they were pinned in it
unpin() {
    [ -e "$STATE/pinned" ] || return 0
    if ! act jetson_clocks --restore "$STATE/pinned"; then
        PROBLEM="jetson_clocks --restore failed"
        return 1
    fi
    rm -f "$STATE/pinned"
}

#: take MODE: and look whether the board really took it
take() {
    now=$(current_mode)
    if [ "$now" = "$1" ]; then
        say "mode $1 is set"
        return 0
    fi
    act nvpmodel -m "$1" || say "nvpmodel ended with status $?"
    [ "$DRY" = no ] || return 0
    now=$(current_mode)
    if [ "$now" != "$1" ]; then
        PROBLEM="the board is in mode ${now:-?}, not $1: there is no such mode, or it needs a reboot; leave it out"
        return 1
    fi
}

#: change MODE|keep yes|no
change() {
    if [ "$2" = yes ] && ! has jetson_clocks; then
        PROBLEM="there is no jetson_clocks here to pin clocks with"
        return 1
    fi
    remember && unpin || return 1
    [ "$1" = keep ] || take "$1" || return 1
    [ "$2" = yes ] || return 0
    rm -f "$STATE/pinned"
    if ! { act jetson_clocks --store "$STATE/pinned" && act jetson_clocks; }; then
        PROBLEM="jetson_clocks failed"
        return 1
    fi
}

#: restore: what was kept; it stays kept until all of it is back
restore() {
    if [ ! -e "$STATE/mode" ]; then
        say "nothing is to be restored"
        return 0
    fi
    old=
    IFS= read -r old <"$STATE/mode"
    if ! is_number "$old"; then
        PROBLEM="$STATE/mode is damaged; set the mode with nvpmodel -m, and remove that folder"
        return 1
    fi
    unpin && take "$old" || return 1
    if [ -e "$STATE/clocks" ] && ! act jetson_clocks --restore "$STATE/clocks"; then
        PROBLEM="jetson_clocks --restore failed"
        return 1
    fi
    say "mode $old and its clocks are back"
    [ "$DRY" = no ] || return 0
    rm -f "$STATE/mode" "$STATE/clocks" "$STATE/pinned"
    rmdir "$STATE" 2>/dev/null || :
    sync
}

#: serve: answers go to stdout; whoever asks may be gone when they come, and the mode must be restored all the same
serve() {
    trap '' INT HUP PIPE
    trap 'exit 1' TERM
    trap 'finish' EXIT
    if [ -e "$STATE/mode" ]; then
        trap - EXIT
        printf 'error %s\n' "an earlier run was not restored; run \`sudo sh $0 --restore\` first"
        exit 1
    fi
    if ! remember; then
        trap - EXIT
        printf 'error %s\n' "$PROBLEM"
        exit 1
    fi
    printf 'ok found mode %s\n' "$(cat "$STATE/mode")"
    while IFS=' ' read -r word mode pin rest; do
        if [ "$word" != set ] || [ -n "$rest" ] || { [ "$mode" != keep ] && ! is_number "$mode"; } ||
            { [ -n "$pin" ] && [ "$pin" != pin ]; }; then
            printf 'error not understood: %s\n' "$word $mode $pin $rest"
            continue
        fi
        PROBLEM=''
        if change "$mode" "$([ "$pin" = pin ] && echo yes || echo no)"; then
            printf 'ok mode %s%s\n' "$(current_mode)" "${pin:+, clocks pinned}"
        else
            printf 'error %s\n' "$PROBLEM"
        fi
    done
}

finish() {
    trap '' TERM
    PROBLEM=''
    if restore; then
        printf 'ok restored mode %s\n' "$(current_mode)"
        exit 0
    fi
    say "$PROBLEM; to do: sudo sh $0 --restore"
    printf 'error %s\n' "$PROBLEM"
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h)
            usage
            exit 0
            ;;
        --dry-run) DRY=yes ;;
        --pin) PIN=yes ;;
        --set)
            [ $# -ge 2 ] || usage_error "--set needs the number of a mode"
            is_number "$2" || usage_error "--set $2: not the number of a mode"
            ACTION=${ACTION}set MODE=$2
            shift
            ;;
        --show | --restore | --serve) ACTION=$ACTION${1#--} ;;
        *) usage_error "$1: no such option" ;;
    esac
    shift
done
[ "$DRY" = no ] || [ "$ACTION" = set ] || [ "$ACTION" = restore ] || usage_error "--dry-run belongs to --set or --restore"
[ "$PIN" = no ] || [ "$ACTION" = set ] || usage_error "--pin belongs to --set"
case $ACTION in
    set | show | restore | serve) ;;
    *) usage_error "one of --show, --set N, --restore, --serve" ;;
esac
if ! has nvpmodel; then
    PROBLEM="there is no nvpmodel here: power modes are a Jetson's (and root's PATH must have /usr/sbin)"
    if [ "$ACTION" = serve ]; then printf 'error %s\n' "$PROBLEM"; else say "$PROBLEM"; fi
    exit 1
fi
if [ "$DRY" = no ] && [ "$(id -u)" -ne 0 ]; then
    say "this needs root: sudo sh $0 …, or look at what it would do: sh $0 --dry-run …"
    exit 77
fi
PROBLEM=''
case $ACTION in
    show)
        say "mode $(current_mode)"
        [ ! -e "$STATE/mode" ] || say "mode $(cat "$STATE/mode") is to be restored: sudo sh $0 --restore"
        ;;
    serve) serve ;;
    set) change "$MODE" "$PIN" || { say "$PROBLEM"; exit 1; } ;;
    restore) restore || { say "$PROBLEM"; exit 1; } ;;
esac
