"""A real Kubernetes on this machine, for the end-to-end tests and for trying things with simulated GPUs.

Nothing of it is shipped. Bottom up, each module may use those above it:

    tools           the cache folder, locks, progress messages, programs in $KUBEBUILDER_ASSETS
    debian          packages of Debian 12, unpacked into the cache folder without touching the machine
    prometheus      Prometheus, of Debian
    pypi, clients   kubectl and helm, pinned
    golang          Go: the machine's own, or a pinned one
    build           Kubernetes, etcd, containerd and CNI plugins, built once from the Go modules pinned in `modules`
    pin             pins another release of Kubernetes
    processes       one program: started, watched, logged, ended with its parent
    slots, runs     ports, addresses and a folder for each test bed, so that many run side by side
    certificates    keys, tokens and kubeconfigs
    control_plane   etcd, kube-apiserver, and on demand controller-manager and scheduler
    kubelets, hollow    nodes that are only objects: simulated GPUs, pods reported as running
    programs        the node's programs
    namespace       the Linux namespaces of the real node, which leave nothing behind
    images          container images written as files
    node            one real node: containerd, kubelet, kube-proxy
    session         the test bed that `python -m testbed up` keeps running
"""
