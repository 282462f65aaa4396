package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/diff"
	argohealth "github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

const (
	argoManager  = "argocd-controller"
	trackingID   = "argocd.argoproj.io/tracking-id"
	trackedLabel = "app.kubernetes.io/instance"
)

// argoAsked is an Application: what its revision of Git has, and the options of its comparison and its sync.
type argoAsked struct {
	Name            string                       `json:"name"`
	Namespace       string                       `json:"namespace"`
	Objects         []*unstructured.Unstructured `json:"objects"`
	Scripts         map[string]string            `json:"scripts"`
	ByLabel         bool                         `json:"byLabel"`         // tracking by label, else by annotation
	ClusterWide     bool                         `json:"clusterWide"`     // it has objects outside of its namespace
	ServerSideDiff  bool                         `json:"serverSideDiff"`  // how it compares
	ServerSideApply bool                         `json:"serverSideApply"` // how it applies, and compares without the above
	Sync            bool                         `json:"sync"`            // else it only compares
	Prune           bool                         `json:"prune"`
	Force           bool                         `json:"force"`
	Replace         bool                         `json:"replace"`
	Timeout         float64                      `json:"timeout"`
}

type argoResult struct {
	Status  string `json:"status"`
	Phase   string `json:"phase"` // of a hook, or of a resource whose wave others wait for
	Message string `json:"message"`
}

// argoAnswer says what differs, and how the sync ends if there is one. Health is that of live objects.
type argoAnswer struct {
	OutOfSync map[string]string     `json:"outOfSync"`
	Phase     string                `json:"phase"`
	Message   string                `json:"message"`
	Results   map[string]argoResult `json:"results"`
	Health    map[string]string     `json:"health"`
}

// override has the health checks that users give to Argo CD.
type override map[string]string

func (scripts override) GetResourceHealth(object *unstructured.Unstructured) (*argohealth.HealthStatus, error) {
	script := scripts[object.GetKind()]
	if script == "" {
		return nil, nil
	}
	said, err := argoHealth(object, script)
	if err != nil {
		return nil, err
	}
	return &argohealth.HealthStatus{Status: argohealth.HealthStatusCode(said.Status), Message: said.Message}, nil
}

// application is what stays the same while a sync continues.
type application struct {
	argoAsked
	config  *rest.Config
	kubectl *kube.KubectlCmd
	cache   cache.ClusterCache
}

// argo compares an Application with the cluster, and syncs it in the steps of Argo CD's application controller.
func argo() (any, error) {
	app := application{kubectl: &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}}
	if err := read(&app.argoAsked); err != nil {
		return nil, err
	}
	config, err := api()
	if err != nil {
		return nil, err
	}
	app.config = config
	app.track()
	app.cache = app.watch()
	if err := app.cache.EnsureSynced(); err != nil {
		return nil, err
	}
	answer := argoAnswer{Results: map[string]argoResult{}}
	var results []common.ResourceSyncResult
	var phase common.OperationPhase
	started := time.Now()
	for {
		found, differences, err := app.compare()
		if err != nil {
			return nil, err
		}
		if !app.Sync {
			answer.OutOfSync, answer.Health = app.report(found, differences)
			return answer, nil
		}
		context, cleanup, err := app.context(found, differences, phase, answer.Message, results, started)
		if err != nil {
			return nil, err
		}
		context.Sync()
		phase, answer.Message, results = context.GetState()
		cleanup()
		if phase.Completed() || time.Since(started).Seconds() > app.Timeout {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	answer.Phase = string(phase)
	for _, one := range results {
		answer.Results[one.ResourceKey.Kind+"/"+one.ResourceKey.Name] = argoResult{string(one.Status), string(one.HookPhase), one.Message}
	}
	return answer, nil
}

// track puts the name of the Application into its objects, as its way of tracking says.
func (app *application) track() {
	for _, object := range app.Objects {
		if app.ByLabel {
			labels := object.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[trackedLabel] = app.Name
			object.SetLabels(labels)
			continue
		}
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		kind, namespace := object.GroupVersionKind(), object.GetNamespace()
		if namespace == "" {
			namespace = app.Namespace
		}
		annotations[trackingID] = fmt.Sprintf("%s:%s/%s:%s/%s", app.Name, kind.Group, kind.Kind, namespace, object.GetName())
		object.SetAnnotations(annotations)
	}
}

// tracked returns the name of the Application that an object says it belongs to.
func (app *application) tracked(object *unstructured.Unstructured) string {
	if app.ByLabel {
		return object.GetLabels()[trackedLabel]
	}
	name, _, _ := strings.Cut(object.GetAnnotations()[trackingID], ":")
	return name
}

func (app *application) watch() cache.ClusterCache {
	return cache.NewClusterCache(app.config,
		cache.SetLogr(logr.Discard()),
		cache.SetKubectl(app.kubectl),
		cache.SetNamespaces([]string{app.Namespace}),
		cache.SetClusterResources(app.ClusterWide),
		cache.SetSettings(cache.Settings{ResourceHealthOverride: override(app.Scripts), ResourcesFilter: everything{}}),
		cache.SetPopulateResourceInfoHandler(func(object *unstructured.Unstructured, isRoot bool) (any, bool) {
			name := app.tracked(object)
			if !isRoot {
				name = ""
			}
			return name, name != ""
		}),
	)
}

type everything struct{}

func (everything) IsExcludedResource(_, _, _ string) bool { return false }

func (app *application) compare() (sync.ReconciliationResult, *diff.DiffResultList, error) {
	var found sync.ReconciliationResult
	live, err := app.cache.GetManagedLiveObjs(app.Objects, func(one *cache.Resource) bool { return one.Info == app.Name })
	if err != nil {
		return found, nil, err
	}
	found = sync.Reconcile(app.Objects, live, app.Namespace, app.cache)
	options := []diff.Option{
		diff.WithLogr(logr.Discard()),
		diff.WithManager(argoManager),
		diff.WithGVKParser(app.cache.GetGVKParser()),
		diff.WithStructuredMergeDiff(app.ServerSideApply),
		diff.WithServerSideDiff(app.ServerSideDiff),
	}
	if app.ServerSideDiff {
		schema := app.cache.GetOpenAPISchema()
		applier, cleanup, err := kube.ManageServerSideDiffDryRuns(app.config, schema, tracing.NopTracer{}, logr.Discard(), nil)
		if err != nil {
			return found, nil, err
		}
		defer cleanup()
		options = append(options, diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(applier)))
	}
	differences, err := diff.DiffArray(found.Target, found.Live, options...)
	return found, differences, err
}

func (app *application) context(
	found sync.ReconciliationResult,
	differences *diff.DiffResultList,
	phase common.OperationPhase,
	message string,
	results []common.ResourceSyncResult,
	started time.Time,
) (sync.SyncContext, func(), error) {
	propagation := metav1.DeletePropagationForeground
	return sync.NewSyncContext("revision", found, app.config, app.config, app.kubectl, app.Namespace, app.cache.GetOpenAPISchema(),
		sync.WithLogr(logr.Discard()),
		sync.WithHealthOverride(override(app.Scripts)),
		sync.WithOperationSettings(false, app.Prune, app.Force, false),
		sync.WithInitialState(phase, message, results, metav1.NewTime(started)),
		sync.WithResourceModificationChecker(false, differences),
		sync.WithPrunePropagationPolicy(&propagation),
		sync.WithReplace(app.Replace),
		sync.WithServerSideApply(app.ServerSideApply),
		sync.WithServerSideApplyManager(argoManager),
	)
}

// report returns what differs, and how: the live object and the one expected, or which of them is missing.
func (app *application) report(found sync.ReconciliationResult, differences *diff.DiffResultList) (map[string]string, map[string]string) {
	differing, healthy := map[string]string{}, map[string]string{}
	for i, one := range differences.Diffs {
		target, live := found.Target[i], found.Live[i]
		switch {
		case live == nil:
			differing[subject(target)] = "missing"
		case target == nil:
			differing[subject(live)] = "to be pruned"
		case one.Modified:
			differing[subject(live)] = string(one.NormalizedLive) + "\n" + string(one.PredictedLive)
		}
		if live != nil {
			if said, err := argohealth.GetResourceHealth(live, override(app.Scripts)); err == nil && said != nil {
				healthy[subject(live)] = string(said.Status)
			}
		}
	}
	return differing, healthy
}
