"""A real Kubernetes on this machine, for the end-to-end tests and for playing with simulated GPUs.

Nothing of it is shipped. Bottom up, each module may use those above it:

    tools           the cache folder, locks, words of progress, programs in $KUBEBUILDER_ASSETS
    debian          packages of Debian 12, unpacked into the cache folder without touching the machine
    pypi, clients   kubectl and helm, pinned
    golang          Go: the machine's own, or a pinned one
    build           Kubernetes, etcd, containerd and CNI plugins, built once from the Go modules pinned in `modules`
    pin             pins another release of Kubernetes
    processes       one program: started, watched, its log kept, ended with us
    slots, runs     ports, addresses and a folder for each test bed, so that many run side by side
    certificates    keys, tokens and kubeconfigs
    control_plane   etcd, kube-apiserver, and on demand controller-manager and scheduler
    hollow          nodes that are only objects: simulated GPUs, pods that "run"
    programs        the node's programs
    namespace       a machine within the machine, of which nothing is left
    images          container images written as files
    carrel_image    one with Carrel in it, for pods that run a door
    node            one real node: containerd, kubelet, kube-proxy
    session         the test bed that `python -m testbed up` keeps running
"""
