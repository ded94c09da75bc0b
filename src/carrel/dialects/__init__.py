"""PURE. The ways in which pods ask for GPUs, and the words in which Carrel answers. Each word is spelled once, here.

Reading is strict and raises only `Malformed`; writing gives exactly what the peers read. Each dialect has one file with
a constant `DIALECT`; all other code asks the registry. `docs/dialects.md` says how to add one.

Reading order:

    interface options registry            what a dialect is; what an admin decides; the list, and a pod's request
    nvidia gpushare gpuclaim kai hami     the peers' dialects
    mig                                   slices of GPUs, in words of NVIDIA's plugin
    cdi                                   which container runtimes know CDI
    gpuclaim_objects                      the kinds of objects that the GpuClaim scheduler defines
    gpu_usage                             what GPUs are used for, in one of them
    carrel booking_objects                Carrel's own words, and bookings as objects
    gpu_lease                             what is recorded on the Lease of a GPU
    kai_reservation                       KAI's pods that take a GPU for others
    gang_makers                           how many pods of a gang a Job or another maker makes
    maia maia_bookings jupyter tier       words about bookings, over HTTP and in files, and people; which tier a pod
                                          has, and what it does when no GPU is free
    protected_keys seal                   what only Carrel writes, and how that is proved
    visible_devices                       what a pod is told at bind, and which container sees which GPU
    memory_limits                         how much memory of its GPUs a container may have
    cpu_manifest                          a pod without its GPU
    lent_gpus                             a booked pod that is not placed, and whose GPUs others may use
    notice                                what the person in a pod is told, and what a pod says that runs without a GPU
    example_pod                           a pod to begin with, for who has booked
    hand_over_record                      the record of how a pod loses its GPU, and the pod that takes its place
"""
