package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type question struct {
	Scripts map[string]string `json:"scripts"`
	Objects []json.RawMessage `json:"objects"`
}

type judgement struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type verdict struct {
	Kstatus judgement `json:"kstatus"`
	Argo    judgement `json:"argo"`
}

// health says how GitOps tools judge resources: kstatus by the library of Flux, and Argo CD by its interpreter of Lua.
// It answers with an array of one verdict for each object.
func health() (any, error) {
	var asked question
	if err := read(&asked); err != nil {
		return nil, err
	}
	verdicts := make([]verdict, 0, len(asked.Objects))
	for _, body := range asked.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(bytes.TrimSpace(body)); err != nil { // whole numbers become int64, as in a client
			return nil, err
		}
		byKstatus, err := kstatus(object)
		if err != nil {
			return nil, err
		}
		byArgo, err := argoHealth(object, asked.Scripts[object.GetKind()])
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, verdict{byKstatus, byArgo})
	}
	return verdicts, nil
}

func kstatus(object *unstructured.Unstructured) (judgement, error) {
	result, err := status.Compute(object)
	if err != nil {
		return judgement{}, err
	}
	return judgement{string(result.Status), result.Message}, nil
}

// argoHealth runs the script with the libraries that Argo CD gives to a health check of a user: base, table, package. Argo's
// own `os` has times only, which a health check must not need.
func argoHealth(object *unstructured.Unstructured, script string) (judgement, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return judgement{}, err
		}
	}
	state.SetGlobal("obj", valueOf(state, object.Object))
	if err := state.DoString(script); err != nil {
		return judgement{}, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return judgement{}, fmt.Errorf("the script returned %s, not a table", state.Get(-1).Type())
	}
	said := judgement{lua.LVAsString(table.RawGetString("status")), lua.LVAsString(table.RawGetString("message"))}
	switch said.Status {
	case "Progressing", "Healthy", "Degraded", "Suspended":
		return said, nil
	}
	return judgement{}, fmt.Errorf("%q is no health status of Argo CD", said.Status)
}

func valueOf(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case string:
		return lua.LString(known)
	case int64:
		return lua.LNumber(known)
	case float64:
		return lua.LNumber(known)
	case []any:
		list := state.CreateTable(len(known), 0)
		for _, item := range known {
			list.Append(valueOf(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for key, item := range known {
			table.RawSetString(key, valueOf(state, item))
		}
		return table
	}
	return lua.LNil
}
