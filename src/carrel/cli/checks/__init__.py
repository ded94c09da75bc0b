"""What `carrel doctor` looks at. Each check is one function of one table, and none ends the others.

finding         what a check says: OK, WARN or FAIL, and what helps; the installation that is looked at
table           all checks, in the order in which a pod meets them; running them
components      Carrel's own pods: whether each answers; their clocks; settings whose wrong value nobody notices
accounts        what the account of each component may do, and that of a hub
definitions     definitions, policies, priority classes, configurations of webhooks; a GPU pod as a dry run
scheduler       the leaders; whether kube-scheduler asks the extender
nodes           the agents' reports, what the kubelets have to give, and what must always hold, counted again
bookings        booking service, database, the objects of bookings
resource_claims  what kube-apiserver asks about ResourceClaims, and what nodes advertise for them
runtime         RuntimeClass, how GPUs are shown to containers, and what a container really sees
before_install  what would happen to the GPU pods of a cluster without Carrel
configuration   which one is in force, what is refused; what pods were given that means nothing to them
"""
