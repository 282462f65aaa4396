package main

import (
	"context"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/normalize"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	fluxManager = "kustomize-controller"
	fluxGroup   = "kustomize.toolkit.fluxcd.io"
)

// fluxAsked is a Kustomization: what its revision of Git has, and the fields of its spec that matter here.
type fluxAsked struct {
	Name      string                       `json:"name"`
	Namespace string                       `json:"namespace"`
	Objects   []*unstructured.Unstructured `json:"objects"`
	Inventory []*unstructured.Unstructured `json:"inventory"` // what was applied before
	Prune     bool                         `json:"prune"`
	Force     bool                         `json:"force"`
	Wait      bool                         `json:"wait"`
	Timeout   float64                      `json:"timeout"`
}

// fluxAnswer says how the reconciliation ends; Reason is that of the Kustomization's condition.
type fluxAnswer struct {
	Reason    string                       `json:"reason"`
	Message   string                       `json:"message"`
	Changes   map[string]string            `json:"changes"`
	Pruned    map[string]string            `json:"pruned"`
	Inventory []*unstructured.Unstructured `json:"inventory"`
}

// flux does one reconciliation of a Kustomization in the steps of kustomize-controller, with its options.
func flux() (any, error) {
	var asked fluxAsked
	if err := read(&asked); err != nil {
		return nil, err
	}
	config, err := api()
	if err != nil {
		return nil, err
	}
	manager, err := resourceManager(config)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	answer := fluxAnswer{Inventory: asked.Inventory}
	manager.SetOwnerLabels(asked.Objects, asked.Name, asked.Namespace)
	if err := normalize.UnstructuredList(asked.Objects); err != nil {
		return nil, err
	}
	applied, err := manager.ApplyAllStaged(ctx, asked.Objects, applyOptions(asked.Force))
	answer.Changes = actions(applied)
	if err != nil {
		answer.Reason, answer.Message = "ReconciliationFailed", err.Error()
		return answer, nil
	}
	answer.Inventory = identities(asked.Objects)
	if asked.Prune {
		pruned, err := manager.DeleteAll(ctx, stale(asked.Inventory, asked.Objects), ssa.DeleteOptions{
			PropagationPolicy: metav1.DeletePropagationBackground,
			Inclusions:        manager.GetOwnerLabels(asked.Name, asked.Namespace),
			Exclusions:        map[string]string{fluxGroup + "/prune": "disabled", fluxGroup + "/reconcile": "disabled"},
		})
		answer.Pruned = actions(pruned)
		if err != nil {
			answer.Reason, answer.Message = "PruneFailed", err.Error()
			return answer, nil
		}
	}
	if asked.Wait {
		timeout := time.Duration(asked.Timeout * float64(time.Second))
		options := ssa.WaitOptions{Interval: 200 * time.Millisecond, Timeout: timeout, FailFast: true}
		if err := manager.WaitForSetWithContext(ctx, applied.ToObjMetadataSet(), options); err != nil {
			answer.Reason, answer.Message = "HealthCheckFailed", err.Error()
			return answer, nil
		}
	}
	answer.Reason = "ReconciliationSucceeded"
	return answer, nil
}

func resourceManager(config *rest.Config) (*ssa.ResourceManager, error) {
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, http)
	if err != nil {
		return nil, err
	}
	connection, err := client.New(config, client.Options{HTTPClient: http, Mapper: mapper})
	if err != nil {
		return nil, err
	}
	poller := polling.NewStatusPoller(connection, mapper, polling.Options{})
	return ssa.NewResourceManager(connection, poller, ssa.Owner{Field: fluxManager, Group: fluxGroup}), nil
}

// applyOptions returns the options of kustomize-controller's `apply`.
func applyOptions(force bool) ssa.ApplyOptions {
	options := ssa.DefaultApplyOptions()
	options.Force = force
	options.ExclusionSelector = map[string]string{fluxGroup + "/reconcile": "disabled", fluxGroup + "/ssa": "Ignore"}
	options.IfNotPresentSelector = map[string]string{fluxGroup + "/ssa": "IfNotPresent"}
	options.ForceSelector = map[string]string{fluxGroup + "/force": "enabled"}
	options.Cleanup = ssa.ApplyCleanupOptions{
		Annotations: []string{corev1.LastAppliedConfigAnnotation},
		FieldManagers: []ssa.FieldManager{
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: fluxManager, OperationType: metav1.ManagedFieldsOperationUpdate},
		},
		Exclusions: map[string]string{fluxGroup + "/ssa": "Merge"},
	}
	return options
}

func actions(changes *ssa.ChangeSet) map[string]string {
	found := map[string]string{}
	if changes != nil {
		for _, entry := range changes.Entries {
			found[entry.ObjMetadata.GroupKind.Kind+"/"+entry.ObjMetadata.Name] = entry.Action.String()
		}
	}
	return found
}

// identities returns the objects as an inventory has them.
func identities(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	found := make([]*unstructured.Unstructured, 0, len(objects))
	for _, applied := range objects {
		one := &unstructured.Unstructured{}
		one.SetGroupVersionKind(applied.GroupVersionKind())
		one.SetName(applied.GetName())
		one.SetNamespace(applied.GetNamespace())
		found = append(found, one)
	}
	return found
}

// stale returns what the inventory has and Git no longer has.
func stale(inventory, objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	current := object.UnstructuredSetToObjMetadataSet(objects)
	var found []*unstructured.Unstructured
	for _, one := range inventory {
		if !current.Contains(object.UnstructuredToObjMetadata(one)) {
			found = append(found, one)
		}
	}
	return found
}
