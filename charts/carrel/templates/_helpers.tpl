{{/* Names are fixed: the admission policies name Carrel's accounts, and a cluster has one Carrel. The chart gpu-booking
     renders these templates with MAIA's names of the webhook as .Values.names. */}}

{{- define "carrel.webhookNames" -}}
{{ merge (dict) (.Values.names | default dict) (dict "configuration" "carrel" "service" "carrel-webhook") | toYaml }}
{{- end }}

{{/* Before the names of values, where another chart renders these templates. */}}
{{- define "carrel.valuePrefix" -}}
{{- if .Values.names }}carrel.{{ end -}}
{{- end }}

{{- define "carrel.labels" -}}
app.kubernetes.io/name: carrel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Of what the Prometheus Operator reads: it may look for labels of its own release. */}}
{{- define "carrel.monitoringLabels" -}}
{{ merge (include "carrel.labels" . | fromYaml) (.Values.monitoring.labels | default dict) | toYaml }}
{{- end }}

{{- define "carrel.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A file of src/carrel/manifests for this namespace: its documents with the chart's labels. Takes root, file and,
     optionally, annotations. */}}
{{- define "carrel.documents" -}}
{{- $root := .root -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $text := $root.Files.Get .file -}}
{{- $text = $text | replace "system:serviceaccount:carrel:" (printf "system:serviceaccount:%s:" $namespace) -}}
{{- $text = regexReplaceAll "(namespace|installed-in): carrel\\b" $text (printf "${1}: %s" $namespace) -}}
{{- $text = regexReplaceAll "(?m)^(\\s+- )carrel$" $text (printf "${1}%s" $namespace) -}}
{{- /* Where KAI's old names are wanted, what reservation pods need is there under both. */ -}}
{{- if and (eq .file "files/rbac.yaml") (eq (dig "reservations" "names" "kai" $root.Values.config) "old-kai") -}}{{- $text = printf "%s\n---\n%s" $text (regexFind "(?s)# Reservation pods:.*" $text | replace "kai-resource-reservation" "runai-reservation") -}}{{- end -}}
{{- $trusted := printf "request.userInfo.username in ['%s']" (join "', '" $root.Values.config.pods.trustedUsers) -}}
{{- if $root.Values.config.pods.trustedUsers -}}{{- $text = $text | replace "request.userInfo.username in []" $trusted -}}{{- end -}}
{{- $names := include "carrel.webhookNames" $root | fromYaml -}}
{{- $text = $text | replace "name: carrel-webhook, path:" (printf "name: %s, path:" $names.service) -}}
{{- $text = $text | replace "metadata: {name: carrel}" (printf "metadata: {name: %s}" $names.configuration) | replace "resourceNames: [carrel]" (printf "resourceNames: [%s]" $names.configuration) | replace "paramRef: {name: carrel," (printf "paramRef: {name: %s," $names.configuration) -}}
{{- /* The webhook puts its first secret into the path, and corrects it where it differs; helm must not differ. */ -}}
{{- include "carrel.makeSecrets" $root -}}
{{- /* Of a Secret of the admin's own the chart knows no path, and leaves it out: the webhook writes it. */ -}}
{{- $path := ternary (printf ", path: /%s/mutate" (get $root.Values.secrets.made "path-secret" | b64dec | splitList "," | first)) "" (hasKey $root.Values.secrets.made "path-secret") -}}
{{- if eq .file "files/webhooks.yaml" -}}{{- $text = $text | replace ", path: /mutate" $path | replace "gracePeriodSeconds.orValue(0) > 300" (printf "gracePeriodSeconds.orValue(0) > %s" (include "carrel.seconds" $root.Values.config.pods.longestGrace)) -}}{{- end -}}
{{- if eq .file "files/dra.yaml" -}}{{- $text = $text | replace ", path: /allocate" (replace "/mutate" "/allocate" $path) | replace "result.driver in ['gpu.carrel.dev']" (printf "result.driver in ['%s']" $root.Values.config.resourceClaims.driver) -}}{{- end -}}
{{- $annotations := .annotations | default dict -}}
{{- $file := .file -}}
{{- range $part := regexSplit "(?m)^---$" $text -1 }}
{{- $document := fromYaml $part }}
{{- $isLeftOut := false }}
{{- if $document }}
{{- if and (eq $file "files/dra.yaml") (not (include "carrel.draOnNodes" $root)) }}
{{- $isLeftOut = has $document.metadata.name (list "gpu.carrel.dev" "carrel-agent-dra" "carrel-slices") }}
{{- end }}
{{- $isLeftOut = or $isLeftOut (and (eq $document.kind "Namespace") (not $root.Values.reservations.createNamespace)) (and (eq $document.kind "DeviceClass") (eq $document.metadata.name "gpu.nvidia.com") (not $root.Values.dra.nvidiaDeviceClass)) }}
{{- end }}
{{- if and $document (not $isLeftOut) }}
{{- $metadata := merge (dict "labels" (include "carrel.labels" $root | fromYaml)) $document.metadata }}
{{- if $annotations }}{{- $_ := set $metadata "annotations" $annotations }}{{- end }}
{{- $_ := set $document "metadata" $metadata }}
{{- if and (eq $document.kind "ServiceAccount") (has $document.metadata.namespace (list "kai-resource-reservation" "runai-reservation")) $root.Values.image.pullSecrets }}
{{- $names := list }}
{{- range $root.Values.image.pullSecrets }}{{- $names = append $names (dict "name" .) }}{{- end }}
{{- $_ := set $document "imagePullSecrets" $names }}
{{- end }}
{{- if and (eq $document.kind "MutatingWebhookConfiguration") (not (include "carrel.draOnNodes" $root)) }}
{{- $asking := list }}
{{- $dra := include "carrel.dra" $root }}
{{- range $document.webhooks }}{{- if not (or (eq .name "claims.carrel.dev") (and (eq .name "claim-pods.carrel.dev") (not $dra))) }}{{- $asking = append $asking . }}{{- end }}{{- end }}
{{- $_ := set $document "webhooks" $asking }}
{{- end }}
{{- /* The webhook writes these rules when it can answer: before, it would refuse GPU pods; and helm would take them back. */ -}}
{{- range $document.webhooks }}{{- if eq .name "gpu-pods.carrel.dev" }}{{- $_ := unset . "rules" }}{{- end }}{{- end }}
{{- if and (eq $document.kind "MutatingWebhookConfiguration") (eq $root.Values.config.nodes.hideGpusFrom "all-pods") }}
{{- range $webhook := $document.webhooks }}
{{- $kept := list }}
{{- range $webhook.matchConditions }}{{- if ne .name "may-see-gpus" }}{{- $kept = append $kept . }}{{- end }}{{- end }}
{{- $_ := set $webhook "matchConditions" $kept }}
{{- end }}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment variables from a map, with the component's own `env` after them. Takes component, set, more and secrets
     (variable → [Secret, key]). */}}
{{- define "carrel.env" -}}
{{- $set := .set -}}
{{- $component := .component -}}
{{- $secrets := .secrets | default dict -}}
{{- range $name, $value := .more }}
{{- if or (hasKey $set $name) (hasKey $secrets $name) (eq $name "CARREL_NAMESPACE") }}
{{- fail (printf "\n\n%s.env has %s, which the chart sets itself; use the value for it (see charts/carrel/README.md)" $component $name) }}
{{- end }}
{{- end }}
- name: CARREL_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- range $name, $value := merge (dict) $set .more }}
{{- if not (has (toString $value) (list "" "<nil>")) }}
- {name: {{ $name }}, value: {{ toString $value | quote }}}
{{- end }}
{{- end }}
{{- range $name, $place := $secrets }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ first $place }}, key: {{ last $place }}}}
{{- end }}
{{- end }}

{{/* A length of time of the configuration, as 5m, in seconds. */}}
{{- define "carrel.seconds" -}}
{{ mul (regexFind "^[0-9]+" . | int) (get (dict "d" 86400 "h" 3600 "m" 60 "s" 1) (regexFind "[dhms]$" .)) }}
{{- end }}

{{/* Whether ResourceClaims are counted; empty: they are not. */}}
{{- define "carrel.dra" -}}
{{- if .Values.config.resourceClaims.enabled -}}true{{- end -}}
{{- end }}

{{/* Whether Carrel's agents are the driver of claims; empty: they are not. */}}
{{- define "carrel.draOnNodes" -}}
{{- if and (include "carrel.dra" .) (ne .Values.config.resourceClaims.driver "gpu.nvidia.com") -}}true{{- end -}}
{{- end }}

{{/* Puts the ServiceAccounts of the cluster's hubs at .Values.config.hubs.accounts, if none is given. They are looked for
     when the chart is installed, and then kept: whoever may create a Deployment could else become a trusted hub later. A
     hub is a Deployment with Zero to JupyterHub's labels whose account has rights in its namespace or in the cluster:
     who may only run pods cannot make one, but who may bind roles in a namespace can, so NOTES show what was found.
     Only what was found is kept, not what was given once. Without a cluster to look at, none is found. */}}
{{- define "carrel.findHubs" -}}
{{- if and .Values.findHubs (not .Values.config.hubs.accounts) -}}
{{- $found := list -}}
{{- if .Release.IsInstall -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $isHub := and (has "hub" (list (get $labels "component") (get $labels "app.kubernetes.io/component"))) (has "jupyterhub" (list (get $labels "app") (get $labels "app.kubernetes.io/name"))) -}}
{{- $namespace := .metadata.namespace -}}
{{- $account := .spec.template.spec.serviceAccountName | default "default" -}}
{{- $bindings := list -}}
{{- if $isHub -}}{{- $bindings = concat ((lookup "rbac.authorization.k8s.io/v1" "RoleBinding" $namespace "").items | default list) ((lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "").items | default list) -}}{{- end -}}
{{- range $bindings -}}{{- range .subjects | default list -}}
{{- if and (eq .kind "ServiceAccount") (eq .name $account) (eq .namespace $namespace) -}}{{- $found = append $found (printf "system:serviceaccount:%s:%s" $namespace $account) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- end -}}
{{- else -}}
{{- with dig "metadata" "annotations" "carrel.dev/found-hubs" "" (lookup "v1" "ConfigMap" .Release.Namespace "carrel") -}}{{- $found = splitList "," . -}}{{- end -}}
{{- end -}}
{{- $_ := set .Values "hubsFound" ($found | uniq | sortAlpha) -}}
{{- $_ := set (get .Values.config "hubs") "accounts" .Values.hubsFound -}}
{{- end -}}
{{- end }}

{{- define "carrel.secretName" -}}
{{ .Values.secrets.existing | default "carrel-secrets" }}
{{- end }}

{{/* The Secret with the token for a booking service elsewhere, and its key. */}}
{{- define "carrel.tokenElsewhere" -}}
{{- if .Values.bookingsElsewhere.existingSecret }}{{ list .Values.bookingsElsewhere.existingSecret .Values.bookingsElsewhere.key | toJson }}{{ else }}["carrel-bookings-elsewhere", "token"]{{ end }}
{{- end }}

{{/* Puts the secrets, encoded, at .Values.secrets.made: given, or kept, or random. Made once in a rendering, because two
     templates need them. Lower case: the API server takes no other letters in the path of a webhook. */}}
{{- define "carrel.makeSecrets" -}}
{{- if not (hasKey .Values.secrets "made") -}}
{{- $kept := dict -}}
{{- with lookup "v1" "Secret" .Release.Namespace (include "carrel.secretName" .) -}}{{- $kept = .data | default dict -}}{{- end -}}
{{- $made := dict -}}
{{- if .Values.secrets.existing -}}
{{- $made = $kept -}}
{{- else -}}
{{- range $key, $given := dict "seal-key" .Values.secrets.sealKey "path-secret" .Values.secrets.pathSecret "maia-token" .Values.secrets.maiaToken "terminator-token" .Values.secrets.terminatorToken -}}
{{- $_ := set $made $key (ternary (b64enc $given) (get $kept $key | default (randAlphaNum 48 | lower | b64enc)) (ne $given "")) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values.secrets "made" $made -}}
{{- end -}}
{{- end }}

{{/* Changes with the secrets that are given, so that pods are replaced then. */}}
{{- define "carrel.givenSecrets" -}}
{{- list (omit .Values.secrets "made") .Values.bookingsElsewhere | toJson | sha256sum -}}
{{- end }}

{{/* What all pods have. Takes root, component and of (its values). */}}
{{- define "carrel.pod" -}}
serviceAccountName: carrel-{{ .account | default .component }}
enableServiceLinks: false  # a Service of the namespace must not become a setting
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Pod Security `restricted`. */}}
{{- define "carrel.restrictedPod" -}}
securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end }}
{{- define "carrel.restrictedContainer" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "carrel.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {app.kubernetes.io/name: carrel, app.kubernetes.io/component: {{ . }}}}
{{- end }}

{{/* Takes port (a name) and scheme. A component that is slow on a busy node is not ended for it. */}}
{{- define "carrel.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }}}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 90}
readinessProbe: {httpGet: {path: /readyz, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }}}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 3}
livenessProbe: {httpGet: {path: /healthz, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }}}, periodSeconds: 15, timeoutSeconds: 10, failureThreshold: 6}
{{- end }}

{{/* With one replica a budget would only block the drain of its node. Takes root, component, replicas. */}}
{{- define "carrel.budget" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: carrel-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "carrel.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {app.kubernetes.io/name: carrel, app.kubernetes.io/component: {{ .component }}}}
{{- end }}
{{- end }}

{{/* Who may reach the ports of a component: everybody; and nobody its other ports. Takes root, component, ports. */}}
{{- define "carrel.networkPolicy" -}}
{{- if .root.Values.networkPolicies.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: carrel-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "carrel.labels" .root | nindent 4 }}
spec:
  podSelector: {matchLabels: {app.kubernetes.io/name: carrel, app.kubernetes.io/component: {{ .component }}}}
  policyTypes: [Ingress]
  ingress:
    - ports:
        {{- range .ports }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
{{- end }}
{{- end }}

{{- define "carrel.podLabels" -}}
{{ include "carrel.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "carrel.bookingReplicas" -}}
{{- if kindIs "invalid" .Values.booking.replicas }}{{ ternary 2 1 (ne .Values.booking.database.existingSecret "") }}{{ else }}{{ int .Values.booking.replicas }}{{ end }}
{{- end }}

{{/* The cluster's version as kube-scheduler's tag: v1.33.5 of v1.33.5-eks-3025e55, v1.33.5-gke.1080000, v1.33.5+k3s1. */}}
{{- define "carrel.kubeSchedulerTag" -}}
{{ .Values.scheduler.image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{/* agent.simulate as the file that `carrel agent --simulate` reads. */}}
{{- define "carrel.simulated" -}}
{{ kindIs "string" .Values.agent.simulate | ternary .Values.agent.simulate (toYaml (dict "gpus" .Values.agent.simulate)) }}
{{- end }}

{{- define "carrel.agentRuntimeClass" -}}
{{- $chosen := .Values.agent.runtimeClassName -}}
{{- if and (eq $chosen "auto") (not .Values.agent.simulate) (lookup "node.k8s.io/v1" "RuntimeClass" "" "nvidia") -}}nvidia
{{- else if not (has $chosen (list "auto" "none")) -}}{{ $chosen }}{{- end -}}
{{- end }}
