# frozen_string_literal: true

# Tests the ways to load the library: ruby packaging.rb SOURCE HOME. SOURCE is the directory in which package.rb has made the gem, HOME
# where `gem install` has installed it. Without RUBYLIB: the gem has to be found by itself.

require 'fileutils'
require 'open3'
require 'rbconfig'
require 'test/unit'
require 'tmpdir'

GEM_SOURCE, GEM_HOME = ARGV.shift(2).map { |path| File.expand_path(path) }
ENV.delete('RUBYLIB')

class TestPackaging < Test::Unit::TestCase
  # Works with TLS, and prints where the library is.
  PROGRAM = <<~RUBY
    require 'eventmachine'
    tls = Module.new { def post_init = start_tls }
    client = Module.new do
      def post_init = start_tls
      def ssl_handshake_completed = EM.stop
    end
    EM.run do
      EM.add_timer(30) { abort 'no handshake' }
      server = EM.start_server('127.0.0.1', 0, tls)
      EM.connect('127.0.0.1', Socket.unpack_sockaddr_in(EM.get_sockname(server)).first, client)
    end
    puts $LOADED_FEATURES.grep(/pelton_eventmachine|rubyeventmachine/)
  RUBY

  def run_program(*command, environment: {}, chdir: Dir.pwd)
    output, status = Open3.capture2e(environment, *command, chdir: chdir, stdin_data: PROGRAM)
    assert status.success?, output
    output
  end

  def installed
    Dir["#{GEM_HOME}/extensions/**/pelton_eventmachine.#{RbConfig::CONFIG['DLEXT']}"].first or flunk "nothing in #{GEM_HOME}"
  end

  test 'with gem install' do
    library = run_program(RbConfig.ruby, '-e', 'gem "pelton-eventmachine"; eval($stdin.read)', environment: { 'GEM_PATH' => GEM_HOME })
    assert_match(/\A#{Regexp.escape(GEM_HOME)}.*pelton_eventmachine/, library)
    assert_equal [], Dir["#{GEM_HOME}/gems/*/ext/target"], 'what was built on the way is gone'
  end

  test 'with -I' do
    lib = Dir["#{GEM_HOME}/gems/pelton-eventmachine-*/lib"].first
    library = run_program(RbConfig.ruby, '-I', File.dirname(installed), '-I', lib, '-')
    assert_match(/pelton_eventmachine/, library)
    assert_no_match(/rubyeventmachine/, library)
  end

  test 'with path: of Bundler, also in place of the gem eventmachine that others depend on' do
    Dir.mktmpdir do |directory|
      # As `make` leaves it.
      FileUtils.cp_r(GEM_SOURCE, "#{directory}/ruby")
      FileUtils.cp(installed, "#{directory}/ruby/ext")
      FileUtils.cp_r("#{__dir__}/../eventmachine", "#{directory}/ruby")
      File.write("#{directory}/Gemfile", <<~GEMFILE)
        gem 'pelton-eventmachine', path: 'ruby'
        gem 'eventmachine', path: 'ruby/eventmachine'
        gem 'thin'
      GEMFILE
      environment = { 'BUNDLE_GEMFILE' => "#{directory}/Gemfile", 'HOME' => directory, 'BUNDLE_PATH' => nil }
      run_program('bundle', 'install', '--local', '--quiet', environment: environment, chdir: directory)
      program = 'require "bundler/setup"; require "thin"; eval($stdin.read)'
      library = run_program('bundle', 'exec', RbConfig.ruby, '-e', program, environment: environment, chdir: directory)
      assert_match(%r{#{Regexp.escape(directory)}/ruby/ext/pelton_eventmachine}, library)
      assert_no_match(/rubyeventmachine/, library)
    end
  end
end
