"""What `carrel doctor` looks at. Each check is one function of one table, and none ends the others.

finding         what a check says: OK, WARN or FAIL, and what helps; the installation that is looked at
table           all checks, in the order in which a pod meets them; running them
components      Carrel's own pods: their settings, whether each answers; their clocks
accounts        what the account of each component may do, and that of a hub
definitions     definitions, policies, priority classes, configurations of webhooks; a GPU pod as a dry run
scheduler       the leaders; whether kube-scheduler asks the extender
nodes           the agents' reports, what the kubelets have to give, and what must always hold, counted again
bookings        booking service, database, the objects of bookings
resource_claims  what kube-apiserver asks about ResourceClaims, and what nodes advertise for them
runtime         RuntimeClass, and how GPUs are shown to containers
given_settings  settings whose wrong value nobody notices
probe_pods      what a container really sees
"""
