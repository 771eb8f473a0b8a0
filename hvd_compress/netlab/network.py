"""What the network of an emulated host is set to: addresses, and a TCP that leaves lines the bottleneck, or not."""

from __future__ import annotations

INTERFACE = "eth0"
MTU = 1500

TCP = {
    # Nothing is ever lost here, so that windows just open and stay open. BBR and CUBIC would estimate the path instead,
    # from pauses between packets that are the relay's, and take seconds to notice that the network was changed.
    "ipv4/tcp_congestion_control": "reno",
    # Training sends in bursts; without this each of them would begin with the window of a new connection.
    "ipv4/tcp_slow_start_after_idle": "0",
    # A connection does not inherit what an earlier one has learnt: the network may have changed.
    "ipv4/tcp_no_metrics_save": "1",
    # An acknowledgement that is late has waited somewhere: sending again what is not lost closes the window.
    "ipv4/tcp_early_retrans": "0",
    # Room for 16 MB on the way: 1 Gbit/s times a round trip of 100 ms, and what waits at the sender.
    "ipv4/tcp_wmem": "4096 4194304 33554432",
    "ipv4/tcp_rmem": "4096 16777216 67108864",
    # It would send to all hosts, unasked.
    "ipv6/conf/all/disable_ipv6": "1",
}

LINUX_TCP = {
    # What hosts have whose administrator has changed nothing: after a pause, as between two exchanges on a slow line, a
    # connection begins anew with 10 packets.
    "ipv4/tcp_slow_start_after_idle": "1",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv6/conf/all/disable_ipv6": "1",
}

WINDOW_PACKETS = 10_000
"""What a new connection may send and receive at once, in packets: a window that is open, as after a long training."""

RETRANSMIT_AFTER = "2s"
"""The least that TCP waits for an acknowledgement, for the same reason."""

QUEUED_FRAMES = 4096
"""Frames that wait in the kernel when the relay's queue is full; TCP is told, and tries again."""


def address(port: int) -> str:
    """The IPv4 address of a host, or of the head, which is port 0. Other labs have the same: they cannot meet."""
    return f"10.0.0.{port + 1}"


def script(port: int, hosts: int, linux_tcp: bool = False, by_packet: bool = False) -> str:
    """A shell script that sets up the host `port` of a lab, to be run on it, with `TCP` or `LINUX_TCP`.

    `by_packet`: the relay gets single packets, as each may be lost; otherwise packs of up to 64 KiB.
    """
    subnet = "10.0.0.0/24"
    open_windows = f"initcwnd {WINDOW_PACKETS} initrwnd {WINDOW_PACKETS} rto_min {RETRANSMIT_AFTER}"
    # Of a route, as kernels refuse it as the default of a namespace where the machine's administrator has another one.
    route = "congctl cubic" if linux_tcp else open_windows
    commands = [
        "link set lo up",
        f"link set {INTERFACE} address {_hardware_address(port)} mtu {MTU} txqueuelen {QUEUED_FRAMES}"
        + (" gso_max_segs 1" if by_packet else ""),
        f"address add {address(port)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        f"route change {subnet} dev {INTERFACE} src {address(port)} {route}",
    ]
    # Hosts know each other from the start: asking would take the latency, and broadcasts.
    commands += [
        f"neigh replace {address(other)} lladdr {_hardware_address(other)} dev {INTERFACE} nud permanent"
        for other in range(hosts + 1)
        if other != port
    ]
    tcp = LINUX_TCP if linux_tcp else TCP
    settings = [
        f"[ ! -e /proc/sys/net/{name} ] || echo '{value}' > /proc/sys/net/{name}" for name, value in tcp.items()
    ]
    return "\n".join(["set -e", *settings, "ip -batch - <<'END'", *commands, "END", ""])


def _hardware_address(port: int) -> str:
    """The relay reads the port from the last byte."""
    return f"02:00:00:00:00:{port:02x}"
