#!/bin/sh
# Lets the named hosts reach each other by ssh as the same user, without root: ssh_setup.sh HOST...
# Everything is written to ~/.ssh, which the containers share; keys are made here and never part of an image.
set -eu
cd ~/.ssh
umask 077
[ -f id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f id_ed25519
[ -f host_key ] || ssh-keygen -q -t ed25519 -N '' -f host_key
cp id_ed25519.pub authorized_keys

: >known_hosts
for host in "$@"; do
    echo "[$host]:2222 $(cut -d ' ' -f 1,2 host_key.pub)" >>known_hosts
done
cat >config <<END
Host $*
    Port 2222
    StrictHostKeyChecking yes
END
cat >sshd_config <<END
Port 2222
HostKey $HOME/.ssh/host_key
AuthorizedKeysFile $HOME/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
SetEnv PATH=$PATH
END
