"""The operator without a cluster: pure decisions and builders."""
