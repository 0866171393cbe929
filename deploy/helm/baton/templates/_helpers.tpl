{{- define "baton.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "baton.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "baton.secret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-keys" (include "baton.name" .)) -}}
{{- end -}}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if .rdma }}
  add: [IPC_LOCK]
  {{- end }}
{{- end -}}

{{- define "baton.probes" -}}
startupProbe:
  httpGet: {path: {{ .live | default .ready }}, port: http}
  periodSeconds: 2
  failureThreshold: {{ .startup }}
readinessProbe:
  httpGet: {path: {{ .ready }}, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  {{- if .live }}
  httpGet: {path: {{ .live }}, port: http}
  {{- else }}
  tcpSocket: {port: http}
  {{- end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "baton.instance" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $values := index $root.Values $role -}}
{{- $name := printf "%s-%s" (include "baton.name" $root) $role -}}
{{- $config := $values.kvTransferConfig | toJson | replace "${POD_IP}" "$(POD_IP)" | replace "${REDIS_URL}" "$(REDIS_URL)" -}}
{{- $connector := $values.kvTransferConfig.kv_connector -}}
# Each address of this service's name is an instance, which the router follows. It probes them itself, and one that ends keeps its address until its
# streams and its cache are with others.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "baton.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: {{ $root.Values.router.enabled }}
  selector: {{- include "baton.selector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ $values.port }}, targetPort: http}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "baton.labels" . | nindent 4 }}
spec:
  serviceName: {{ $name }}
  {{- if not $values.autoscaling.enabled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "baton.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "baton.labels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: {{ $values.port | quote }}
        prometheus.io/path: /metrics
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: {{ add $root.Values.shutdown.keepCacheSeconds $root.Values.shutdown.timeoutSeconds 10 }}
      securityContext: {{- include "baton.podSecurity" . | nindent 8 }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- else }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "baton.selector" . | nindent 20 }}
      {{- end }}
      {{- with $values.initContainers }}
      initContainers: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ $role }}
          image: {{ include "baton.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          securityContext: {{- include "baton.containerSecurity" (dict "rdma" $root.Values.rdma.enabled) | nindent 12 }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            - name: JDK_JAVA_OPTIONS
              value: {{ $values.javaOpts | quote }}
            {{- if $root.Values.router.enabled }}
            - name: BATON_INSTANCE_URL
              value: http://$(POD_IP):{{ $values.port }}
            - name: BATON_ADMIN_KEY
              valueFrom: {secretKeyRef: {name: {{ include "baton.secret" $root }}, key: admin-key}}
            {{- end }}
            {{- if $root.Values.redis.url }}
            - name: REDIS_URL
              valueFrom: {secretKeyRef: {name: {{ include "baton.name" $root }}-redis, key: url}}
            {{- else if $root.Values.redis.enabled }}
            - name: REDIS_URL
              value: redis://{{ include "baton.name" $root }}-redis:6379
            {{- end }}
            {{- if or $root.Values.auth.apiKey $root.Values.auth.existingSecret }}
            - name: BATON_API_KEY
              valueFrom: {secretKeyRef: {name: {{ include "baton.secret" $root }}, key: api-key}}
            {{- end }}
          args:
            - serve
            - {{ $root.Values.model.path | quote }}
            - --host=0.0.0.0
            - --port={{ $values.port }}
            - --tensor-parallel-size={{ $values.tensorParallelSize }}
            - --kv-cache-memory-bytes={{ $values.kvCacheMemory }}
            - --shutdown-timeout={{ $root.Values.shutdown.timeoutSeconds }}
            - {{ printf "--kv-transfer-config=%s" $config | quote }}
            {{- if has $connector (list "NixlConnector" "NixlPushConnector" "PyNcclConnector" "P2pNcclConnector") }}
            - --kv-auth-secret-file=/etc/baton/kv-auth
            {{- end }}
            {{- with $root.Values.model.servedName }}
            - --served-model-name={{ . }}
            {{- end }}
            {{- if or $root.Values.auth.apiKey $root.Values.auth.existingSecret }}
            - --api-key=$(BATON_API_KEY)
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          ports:
            - {name: http, containerPort: {{ $values.port }}}
            - {name: kv, containerPort: 5600}
          {{- include "baton.probes" (dict "startup" 300 "ready" "/health" "live" "") | nindent 10 }}
          lifecycle:
            {{- if $root.Values.router.enabled }}
            # Streams continue at other instances, and these get the hottest prefixes, before this one ends.
            preStop:
              exec:
                command:
                  - /opt/java/bin/java
                  - -Xmx64m
                  - "@/opt/baton/java.options"
                  - baton.cli.Baton
                  - drain
                  - --router=http://{{ include "baton.name" $root }}-routers:8000
                  - --wait={{ $root.Values.shutdown.keepCacheSeconds }}
            {{- else }}
            # Whoever routes must have seen that this address is gone before new requests are refused.
            preStop:
              sleep: {seconds: {{ $root.Values.shutdown.drainSeconds }}}
            {{- end }}
          resources:
            {{- $resources := deepCopy $values.resources }}
            {{- if $root.Values.rdma.enabled }}
            {{- $rdma := dict $root.Values.rdma.resource $root.Values.rdma.quantity }}
            {{- $resources = mergeOverwrite $resources (dict "limits" $rdma "requests" $rdma) }}
            {{- end }}
            {{- toYaml $resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: shm, mountPath: /dev/shm}
            - {name: keys, mountPath: /etc/baton, readOnly: true}
            {{- if $root.Values.model.existingClaim }}
            - {name: models, mountPath: /models, readOnly: true}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ $root.Values.sharedMemory.sizeLimit }}}}
        - name: keys
          secret:
            secretName: {{ include "baton.secret" $root }}
            defaultMode: 0440
            items: [{key: kv-auth, path: kv-auth}]
        {{- with $root.Values.model.existingClaim }}
        - {name: models, persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- include "baton.labels" . | nindent 4 }}
spec:
  {{- toYaml $values.disruptionBudget | nindent 2 }}
  selector:
    matchLabels: {{- include "baton.selector" . | nindent 6 }}
{{- if $values.autoscaling.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels: {{- include "baton.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: {{ $name }}}
  minReplicas: {{ $values.autoscaling.minReplicas }}
  maxReplicas: {{ $values.autoscaling.maxReplicas }}
  metrics:
    {{- range $name, $value := $values.autoscaling.metrics }}
    - type: Pods
      pods:
        metric: {name: {{ $name }}}
        target: {type: AverageValue, averageValue: {{ $value | quote }}}
    {{- end }}
  behavior:
    # One at a time, which others take the cache of.
    scaleDown:
      stabilizationWindowSeconds: 300
      policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end }}
{{- end -}}
