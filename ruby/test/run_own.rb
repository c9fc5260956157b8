# frozen_string_literal: true

# Runs our tests, or those that are named: ruby run_own.rb [test_order test_faults ...]

names = ARGV.empty? ? Dir["#{__dir__}/test_*.rb"].sort : ARGV.map { |name| "#{__dir__}/#{name}.rb" }
ARGV.clear
names.each { |name| require File.expand_path(name) }
