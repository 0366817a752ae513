package main

import (
	"encoding/json"
	"fmt"
)

// panel is a picture of the dashboard.
type panel struct {
	title, help string
	// kind is timeseries, stat or table.
	kind, unit string
	// width is in 24ths of the page.
	width   int
	queries []query
}

type query struct{ expr, legend string }

const (
	timeseries = "timeseries"
	stat       = "stat"
	table      = "table"

	panelHeight = 8
	pageWidth   = 24
)

var panels = []panel{
	{"Servers", "Identity Leases of API servers.", stat, "short", 4, []query{{"count(max by (lease) (concord_server_lease_renewed_timestamp_seconds))", "servers"}}},
	{"Not agreed on", "Resources that API servers do not store in the same way, or of which that is not known.", stat, "short", 5,
		[]query{{"count(max by (resource) (concord_storage_agreed) == 0) or vector(0)", "resources"}}},
	{"More than one encoding", "Resources whose objects may be stored in more than one version, or with more than one key.", stat, "short", 5,
		[]query{{"count(max by (resource) (concord_storage_encodings) > 1) or vector(0)", "resources"}}},
	{"Failed migrations", "Newest failures are in the status of the StorageVersionMigration.", stat, "short", 5,
		[]query{{`sum(max by (resource) (concord_migrations{phase="Failed"}))`, "migrations"}}},
	{"Etcd's space", "Used of the quota.", stat, "percentunit", 5, []query{{"max(concord_etcd_space_used_ratio)", "used"}}},

	{"Not agreed on", "Each line is a resource; lines that stay are worth a look at the StorageState.", table, "short", 12,
		[]query{{"max by (resource) (concord_storage_agreed) == 0", ""}}},
	{"More than one encoding", "How many there are, by resource.", table, "short", 12, []query{{"max by (resource) (concord_storage_encodings) > 1", ""}}},

	{"Migrations by phase", "", timeseries, "short", 8, []query{{"sum by (phase) (max by (resource, phase) (concord_migrations))", "{{phase}}"}}},
	{"Objects to be migrated", "", timeseries, "short", 8, []query{{`max by (resource) (concord_migration_objects{state="remaining"}) > 0`, "{{resource}}"}}},
	{"Objects migrated per second", "", timeseries, "ops", 8, []query{{"sum by (resource) (rate(storage_migrator_core_migrator_migrated_objects_total[1m])) > 0", "{{resource}}"}}},

	{"Latency of clients' writes", "99 of 100 are faster. Watches and the controllers' own requests are not told apart.", timeseries, "s", 8,
		[]query{{`histogram_quantile(0.99, sum by (le, verb) (rate(apiserver_request_duration_seconds_bucket{verb=~"POST|PUT|PATCH|DELETE"}[5m])))`, "{{verb}}"}}},
	{"Objects that failed", "By reason; one that is tried again counts again.", timeseries, "short", 8,
		[]query{{"sum by (resource, reason) (increase(concord_migration_failed_objects_total[5m])) > 0", "{{resource}} {{reason}}"}}},
	{"Objects changed by clients meanwhile", "Read again and written, not lost.", timeseries, "short", 8,
		[]query{{"sum by (resource) (increase(concord_migration_conflicts_total[5m])) > 0", "{{resource}}"}}},

	{"Writes refused by the gate", "Some are normal while a server starts.", timeseries, "ops", 8,
		[]query{{"sum by (instance, reason) (rate(concord_gate_refused_requests_total[5m]))", "{{instance}} {{reason}}"}}},
	{"Fence", "Writes that found the StorageVersion changed: written after another look, or forwarded to the newer store.", timeseries, "ops", 8, []query{
		{"sum(rate(concord_fence_retries_total[5m]))", "tried again"},
		{"sum by (result) (rate(concord_fence_forwards_total[5m]))", "forwarded: {{result}}"},
	}},
	{"Time without agreement", "99 of 100 times that an agreement ended were shorter.", timeseries, "s", 8, []query{
		{"histogram_quantile(0.99, sum by (le) (rate(concord_storageversion_agreement_duration_seconds_bucket[1h])))", "until agreed again"},
		{"histogram_quantile(0.99, sum by (le) (rate(concord_storageversion_report_duration_seconds_bucket[1h])))", "until all is reported"},
	}},

	{"Servers by release", "The release that each emulates.", timeseries, "short", 8, []query{{"max by (emulation_version) (concord_server_skew_servers)", "{{emulation_version}}"}}},
	{"Since the last renewal", "Of each server's identity Lease.", timeseries, "s", 8,
		[]query{{"time() - max by (lease) (concord_server_lease_renewed_timestamp_seconds)", "{{lease}}"}}},
	{"Encryption keys", "How many stored objects of a resource need. Two while a key is being exchanged.", timeseries, "short", 8,
		[]query{{"max by (resource) (concord_storage_keys) > 0", "{{resource}}"}}},
}

// dashboard writes Grafana's dashboard.
func dashboard(string) (map[string]string, error) {
	var list []map[string]any
	x, y := 0, 0
	for i, p := range panels {
		if x+p.width > pageWidth {
			x, y = 0, y+panelHeight
		}
		var targets []map[string]any
		for j, q := range p.queries {
			targets = append(targets, map[string]any{
				"refId": string(rune('A' + j)), "expr": q.expr, "legendFormat": q.legend,
				"instant": p.kind != timeseries, "range": p.kind == timeseries, "format": map[bool]string{true: "table", false: "time_series"}[p.kind == table],
			})
		}
		list = append(list, map[string]any{
			"id": i + 1, "type": p.kind, "title": p.title, "description": p.help,
			"datasource":  map[string]any{"type": "prometheus", "uid": "${datasource}"},
			"gridPos":     map[string]any{"x": x, "y": y, "w": p.width, "h": panelHeight},
			"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.unit}, "overrides": []any{}},
			"targets":     targets,
		})
		x += p.width
	}
	content, err := json.MarshalIndent(map[string]any{
		"uid": "concord", "title": "Concord: what is stored", "tags": []string{"concord", "kubernetes"}, "schemaVersion": 39,
		"editable": true, "refresh": "30s", "time": map[string]any{"from": "now-3h", "to": "now"}, "timezone": "utc",
		"templating": map[string]any{"list": []any{map[string]any{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}},
		"panels":     list,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	return map[string]string{"deploy/monitoring/dashboard.json": string(content) + "\n"}, nil
}
