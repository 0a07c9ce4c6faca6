{{/* The name of the release's objects. A pod's name adds 17 characters, and server.replica takes 48 at most. */}}
{{- define "a2a-gateway.name" -}}
{{- if contains "a2a-gateway" .Release.Name -}}
{{- .Release.Name | trunc 31 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-a2a-gateway" (.Release.Name | trunc 19 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "a2a-gateway.selector" -}}
app.kubernetes.io/name: a2a-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "a2a-gateway.labels" -}}
{{ include "a2a-gateway.selector" . }}
app.kubernetes.io/part-of: a2a-gateway
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}
