{{/* Parts of the chart carrel are used as they are: its helpers as _carrel.tpl, its templates, values and manifests as
     files. A chart cannot hand its own values down to a dependency, so this one renders the templates itself, with the
     values that it computes. */}}

{{/* A Carrel that another release has installed, as YAML: its namespace, release and chart. Nothing, if there is none. */}}
{{- define "gpu-booking.there" -}}
{{- with lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "carrel-installation" -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $namespace := get $notes "carrel.dev/installed-in" -}}
{{- $release := get $notes "meta.helm.sh/release-name" | default "unknown" -}}
{{- $isOwn := and (eq $release $.Release.Name) (eq (get $notes "meta.helm.sh/release-namespace") $.Release.Namespace) -}}
{{- if and $namespace (not $isOwn) (lookup "v1" "Namespace" "" $namespace) -}}
{{ dict "namespace" $namespace "release" $release "chart" (get (.metadata.labels | default dict) "helm.sh/chart") | toYaml }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The value of a variable of a Deployment's first container. Takes namespace, deployment, variable. */}}
{{- define "gpu-booking.variable" -}}
{{- $wanted := .variable -}}
{{- with lookup "apps/v1" "Deployment" .namespace .deployment -}}
{{- range (first .spec.template.spec.containers).env -}}
{{- if eq .name $wanted }}{{ .value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Where people find the booking service of the Carrel that is there. Takes its namespace. */}}
{{- define "gpu-booking.publicUrl" -}}
{{- $found := get ((lookup "v1" "ConfigMap" .namespace "carrel").data | default dict) "carrel.yaml" | default "{}" | fromYaml -}}
{{- dig "bookings" "publicUrl" "" $found -}}
{{- end }}

{{/* Stops with everything that is wrong about the four values. Takes root and there. */}}
{{- define "gpu-booking.check" -}}
{{- $wrong := list -}}
{{- $given := .root.Values -}}
{{- $there := .there -}}
{{- range $name, $example := dict "apiUrl" "https://maia.example/maia-api/gpu-schedulability/" "gpuStatsUrl" "https://maia.example/maia-api/gpu-stats/" -}}
{{- $value := get $given $name -}}
{{- if not (regexMatch "^(https?://[^/\\s]+\\S*)?$" $value) -}}
{{- $wrong = append $wrong (printf "%s is %q; write an address such as %s, or leave it empty" $name $value $example) -}}
{{- end -}}
{{- end -}}
{{- if has $given.apiToken (list "secret-token" "S#perS3crEt_007") -}}
{{- $wrong = append $wrong "apiToken is the example of MAIA's documents, which everybody knows; write the token of your dashboard or, without apiUrl, leave it empty for a random one" -}}
{{- else if and $given.apiUrl (not $given.apiToken) -}}
{{- $wrong = append $wrong "apiUrl needs apiToken, the token that the dashboard expects" -}}
{{- else if and $given.apiToken (not $given.apiUrl) (lt (len $given.apiToken) 16) -}}
{{- $wrong = append $wrong (printf "apiToken has %d characters, which can be guessed; leave it empty for a random one, or write at least 16" (len $given.apiToken)) -}}
{{- end -}}
{{- if and $given.gpuStatsUrl (not $given.apiUrl) -}}
{{- $wrong = append $wrong "gpuStatsUrl is given, and apiUrl is not; write both for bookings in MAIA's dashboard, and none for Carrel's own booking service" -}}
{{- end -}}
{{- if and $given.namespace (ne $given.namespace .root.Release.Namespace) -}}
{{- $wrong = append $wrong (printf "namespace is %s, and helm installs into %s; write --namespace %s, or leave namespace empty" $given.namespace .root.Release.Namespace $given.namespace) -}}
{{- end -}}
{{- if $there.namespace -}}
{{- $change := printf "helm upgrade %s charts/carrel --namespace %s --reset-then-reuse-values" $there.release $there.namespace -}}
{{- if hasPrefix "gpu-booking-" $there.chart -}}
{{- $wrong = append $wrong (printf "the release %s of this chart in the namespace %s has MAIA's names already, and a cluster has one Carrel; use that release" $there.release $there.namespace) -}}
{{- end -}}
{{- if $given.carrel -}}
{{- $wrong = append $wrong (printf "carrel has values for a Carrel that this release would install, and one is in the namespace %s already; give them to it: %s" $there.namespace $change) -}}
{{- end -}}
{{- $asked := list (include "gpu-booking.variable" (dict "namespace" $there.namespace "deployment" "carrel-controller" "variable" "CARREL_API_URL")) (include "gpu-booking.publicUrl" $there) (printf "http://carrel-booking.%s" $there.namespace) -}}
{{- $isThere := not $given.apiUrl -}}
{{- range $asked -}}{{- if and . (hasPrefix (trimSuffix "/" .) $given.apiUrl) -}}{{- $isThere = true -}}{{- end -}}{{- end -}}
{{- if not $isThere -}}
{{- $wrong = append $wrong (printf "apiUrl is %s, and the Carrel in the namespace %s has its bookings elsewhere; leave apiUrl and apiToken empty, or change that Carrel: %s --set booking.enabled=false,bookingsElsewhere.apiUrl=%s,bookingsElsewhere.token=…" $given.apiUrl $there.namespace $change $given.apiUrl) -}}
{{- end -}}
{{- if and $given.apiToken (not $given.apiUrl) -}}
{{- $wrong = append $wrong (printf "the Carrel in the namespace %s has a token already; leave apiToken empty, or change it there: %s --set secrets.maiaToken=…" $there.namespace $change) -}}
{{- end -}}
{{- end -}}
{{- if $wrong }}
{{- fail (printf "\n\nThese values cannot be used:\n  - %s\n" (join "\n  - " $wrong)) }}
{{- end -}}
{{- end }}

{{/* Puts what the templates of the chart carrel are rendered with at .carrel. Takes root. */}}
{{- define "gpu-booking.prepare" -}}
{{- $root := .root -}}
{{- /* As MAIA's document has it: one GPU is booked, the person's pods have priority, a GPU is revoked before a hub gives
     up the other notebook, and NVIDIA's plugin hands GPUs out. Simulated GPUs are Carrel's own plugin's. */ -}}
{{- $ofDocument := dict "config" (dict "bookings" (dict "rules" (dict "maxGpus" 1)) "dialects" (dict "maiaBookingGpus" 8) "tiers" (dict "notebookGrace" "30s") "nodes" (dict "plugin" (ternary "native" "coexist" (not (empty (dig "agent" "simulate" "" ($root.Values.carrel | default dict))))))) -}}
{{- $values := mustMergeOverwrite (fromYaml ($root.Files.Get "carrel-values.yaml")) $ofDocument (deepCopy ($root.Values.carrel | default dict)) -}}
{{- $maia := dict "names" (dict "configuration" "gpu-booking-webhook" "service" "gpu-booking-mutating-webhook") -}}
{{- if $root.Values.apiUrl -}}
{{- /* Its pages show map and usage then, and need a volume and a sign-in: only if they are asked for. */ -}}
{{- $maia = merge $maia (dict "booking" (dict "enabled" (dig "booking" "enabled" false ($root.Values.carrel | default dict))) "bookingsElsewhere" (dict "apiUrl" $root.Values.apiUrl "token" $root.Values.apiToken "existingSecret" "")) -}}
{{- else if $root.Values.apiToken -}}
{{- $maia = merge $maia (dict "secrets" (dict "maiaToken" $root.Values.apiToken)) -}}
{{- end -}}
{{- $_ := set . "carrel" (dict "Values" (mustMergeOverwrite $values $maia) "Release" $root.Release "Chart" $root.Chart "Files" $root.Files "Capabilities" $root.Capabilities "Template" $root.Template) -}}
{{- end }}
