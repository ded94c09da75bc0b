"""What `carrel doctor` looks at. Each check is one function of one table, and none ends the others.

finding         what a check says: OK, WARN or FAIL, and what helps; the installation that is looked at
table           all checks, in the order in which a pod meets them; running them
component_pods  Carrel's own pods: their settings, and asking them over the API server
accounts        what each component's account may do
definitions     custom resource definitions, policies, priority classes, the webhook's configuration
admission       a GPU pod as a dry run
scheduler       the leaders; whether kube-scheduler asks the extender
components      whether each answers; their clocks
nodes           the agents' reports, and what the kubelets advertise
bookings        booking service, database, the objects of bookings
invariants      what must always hold, counted again
resource_claims  what kube-apiserver asks about ResourceClaims, and what nodes advertise for them
hub maia        the accounts and addresses of others
runtime         RuntimeClass, and how GPUs are shown to containers
given_settings  settings whose wrong value nobody notices
probe_pods      what a container really sees
"""
