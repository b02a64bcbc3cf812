#!/usr/bin/env bash
# install.sh PURPOSE TOOL=PACKAGE…: installs what some tests need, if that is possible. One line
# names what is still missing; the tests that need it are skipped, each with its reason.
set -uo pipefail
purpose=$1
shift
declare -A packages
for pair; do packages[${pair%%=*}]=${pair#*=}; done
missing() { for tool in "${!packages[@]}"; do command -v "$tool" > /dev/null || echo "$tool"; done; }

PATH=$PATH:/usr/sbin:/sbin
wanted=$(for tool in $(missing); do echo "${packages[$tool]}"; done)
[[ $wanted ]] || exit 0
if [[ $EUID == 0 ]] && command -v apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get update -q && apt-get install -qy --no-install-recommends $wanted; } > /dev/null
fi
left=$(missing | xargs)
[[ -z $left ]] || echo "$purpose: skipping the tests that need $left, which cannot be installed here"
