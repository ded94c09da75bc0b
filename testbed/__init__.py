"""A real Kubernetes on this machine, for the end-to-end tests and for playing with simulated GPUs.

Nothing of it is shipped. Bottom up, each module may use those above it:

    tools           where binaries come from: PATH, $KUBEBUILDER_ASSETS, the cache folder
    debian          packages of Debian 12, unpacked into the cache folder without touching the machine
    build           Kubernetes itself, built once from Debian's source package
    processes       one program: started, watched, its log kept, ended with us
    certificates    keys, tokens and kubeconfigs
    control_plane   etcd, kube-apiserver, and on demand controller-manager and scheduler
    hollow          nodes that are only objects: simulated GPUs, pods that "run"
    node            one real node: containerd, kubelet, kube-proxy, and what they leave behind
    session         the test bed that `python -m testbed up` keeps running
"""
